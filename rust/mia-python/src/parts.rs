//! Parts of rows spread over the cores, which calls at the same time share.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use rayon::Scope;

/// Parts for each core: few, so that neighbours stay together, but enough that no core waits long
/// for another.
const PARTS: usize = 32;

/// Calls that go over rows now.
static CALLS: AtomicUsize = AtomicUsize::new(0);

/// Applies `read` to parts of the rows, in their order, each with the number of rows before it.
///
/// A call that is alone has all cores, each with a reader of its own. Of several calls each has its
/// share: they come from as many threads, and if all had all cores, these would go from one to
/// another, and from kernels to what else the callers do, in the middle of a part.
///
/// The error is that of the first part that has one.
pub(crate) fn map_parts<Row, Reader, T, E>(
    rows: &[Row],
    min_rows: usize,
    new_reader: impl Fn() -> Reader + Sync,
    read: impl Fn(&mut Reader, usize, &[Row]) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E>
where
    Row: Sync,
    T: Send,
    E: Send,
{
    let _presence = Presence::begin();
    let n_parts = PARTS * rayon::current_num_threads();
    let work = Work {
        rows,
        step: rows.len().div_ceil(n_parts).max(min_rows),
        next: AtomicUsize::new(0),
        threads: AtomicUsize::new(1),
        done: Mutex::default(),
        new_reader,
        read,
    };
    rayon::in_place_scope(|scope| work.take_part(scope));
    let mut done = work
        .done
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(part, _)| *part);
    done.into_iter().map(|(_, found)| found).collect()
}

/// One of `CALLS`.
struct Presence;

impl Presence {
    fn begin() -> Self {
        CALLS.fetch_add(1, Relaxed);
        Self
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        CALLS.fetch_sub(1, Relaxed);
    }
}

/// Cores for one call.
fn share() -> usize {
    let calls = CALLS.load(Relaxed).max(1);
    ((rayon::current_num_threads() + calls / 2) / calls).max(1)
}

/// What the threads of one call have in common.
struct Work<'rows, Row, New, Read, Found> {
    rows: &'rows [Row],
    /// Rows of a part.
    step: usize,
    /// The first part that nobody has taken.
    next: AtomicUsize,
    /// How many threads take part.
    threads: AtomicUsize,
    /// What was found, by the number of its part.
    done: Mutex<Vec<(usize, Found)>>,
    new_reader: New,
    read: Read,
}

impl<Row, Reader, New, Read, T, E> Work<'_, Row, New, Read, Result<T, E>>
where
    Row: Sync,
    New: Fn() -> Reader + Sync,
    Read: Fn(&mut Reader, usize, &[Row]) -> Result<T, E> + Sync,
    T: Send,
    E: Send,
{
    /// Be one of the threads, until no part is left or other calls need the core.
    fn take_part<'scope>(&'scope self, scope: &Scope<'scope>) {
        let mut reader = None;
        let mut found = Vec::new();
        while !self.change_threads(|threads| (threads > share()).then(|| threads - 1)) {
            let part = self.next.fetch_add(1, Relaxed);
            let mut parts = self.rows.chunks(self.step).skip(part);
            let Some(rows) = parts.next() else {
                break;
            };
            if parts.next().is_some()
                && self.change_threads(|threads| (threads < share()).then(|| threads + 1))
            {
                scope.spawn(|scope| self.take_part(scope));
            }
            let reader = reader.get_or_insert_with(&self.new_reader);
            let read = (self.read)(reader, part * self.step, rows);
            if read.is_err() {
                self.next.store(self.rows.len(), Relaxed);
            }
            found.push((part, read));
        }
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        done.append(&mut found);
    }

    /// Sets the number of threads, unless it shall stay; says whether it did.
    fn change_threads(&self, change: impl FnMut(usize) -> Option<usize>) -> bool {
        self.threads.fetch_update(Relaxed, Relaxed, change).is_ok()
    }
}
