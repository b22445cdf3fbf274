"""Every exception that the package raises on purpose."""


class MiaBatchError(Exception):
    """Base of every exception that the package raises on purpose."""


class RequestError(MiaBatchError, ValueError):
    """A request cannot be done as asked; found before any model is loaded."""


class SettingsError(RequestError):
    """A setting is unknown, malformed, or contradicts another."""


class CorpusError(RequestError):
    """The input cannot be read as a corpus; the message names file, row and column."""


class RunFolderError(MiaBatchError, RuntimeError):
    """The run folder is unwritable, in use by a live run, or has other settings."""


class DamagedTableError(RunFolderError):
    """A table in the run folder is damaged; the same command rebuilds it."""


class EngineError(MiaBatchError, RuntimeError):
    """An engine cannot start or cannot continue."""


class SchemaMismatchError(MiaBatchError, TypeError):
    """A table does not have the columns or types that a stage needs."""
