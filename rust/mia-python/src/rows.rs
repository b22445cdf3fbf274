//! Rows spread over the cores.

use mia_kernels::KernelError;
use rayon::prelude::*;

/// Fewest rows that a core takes, so that its reader pays and the samples of a target, which
/// share their reference, seldom part.
pub(crate) const MIN_ROWS: usize = 8;

/// Applies `read` to every row, with a reader of its own for each core.
///
/// The result does not depend on the number of cores, because no row sees another.
pub(crate) fn map_rows<Row, Reader, T>(
    rows: &[Option<Row>],
    new_reader: impl Fn() -> Reader + Send + Sync,
    read: impl Fn(&mut Reader, Row) -> Result<T, KernelError> + Send + Sync,
) -> Result<Vec<Option<T>>, KernelError>
where
    Row: Copy + Send + Sync,
    T: Send,
{
    rows.par_iter()
        .with_min_len(MIN_ROWS)
        .map_init(new_reader, |reader, row| {
            row.map(|row| read(reader, row)).transpose()
        })
        .collect()
}
