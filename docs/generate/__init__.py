"""Parts of the site that are made from the code: attacks, tables, settings, figures."""
