//! Loops with the widest vector instructions that the processor has.

/// Runs a loop with them, if all that it calls is inlined into it.
#[cfg(target_arch = "x86_64")]
pub(crate) fn vectorize<R>(task: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(task)
}

/// The same on a processor whose instructions are all known when this is compiled.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn vectorize<R>(task: impl FnOnce() -> R) -> R {
    task()
}
