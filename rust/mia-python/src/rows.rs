//! Rows that are read one by one.

use mia_kernels::KernelError;

use crate::parts::map_parts;

/// Fewest rows that a core takes, so that its reader pays and the samples of a target, which
/// share their reference, seldom part.
pub(crate) const MIN_ROWS: usize = 8;

/// Applies `read` to every row that is not null, with a reader of its own for each core.
///
/// The result does not depend on the number of cores, because no row sees another.
pub(crate) fn map_rows<Row, Reader, T>(
    rows: &[Option<Row>],
    new_reader: impl Fn() -> Reader + Sync,
    read: impl Fn(&mut Reader, Row) -> Result<T, KernelError> + Sync,
) -> Result<Vec<Option<T>>, KernelError>
where
    Row: Copy + Sync,
    T: Send,
{
    let parts = map_parts(rows, MIN_ROWS, new_reader, |reader, _, rows| {
        let read = |row: &Option<Row>| row.map(|row| read(reader, row)).transpose();
        rows.iter().map(read).collect::<Result<Vec<_>, _>>()
    })?;
    Ok(parts.into_iter().flatten().collect())
}
