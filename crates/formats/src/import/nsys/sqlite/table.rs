//! A table of the file, by columns that may be missing, read either directly from the pages or by
//! SQLite. Both return the same rows.

use std::fs::File;

use rusqlite::types::ValueRef;

use super::database::Database;
use super::page_reader::{Failed, PageReader};
use super::record::{RecordRow, SKIPPED_COLUMN};
use crate::import::ImportError;

/// Order of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RowOrder {
    /// The order of the file.
    Stored,
    /// By these columns, then in the order of the file.
    By(&'static str),
}

/// An existing table, and the positions of its columns.
#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    name: &'static str,
    columns: [&'static str; N],
    /// Bit set of the columns that the table has.
    present: u32,
    /// Position in a row for each column of the table.
    positions: Vec<u8>,
    root: u32,
    /// Whether the rows can be read directly from the pages.
    direct: bool,
    rowid: bool,
}

impl<const N: usize> Table<N> {
    /// Finds a table; `None` if the file has none of that name.
    pub(crate) fn find(
        database: &Database,
        name: &'static str,
        columns: [&'static str; N],
    ) -> Result<Option<Self>, ImportError> {
        let failed = |error| database.sqlite_error(name, &error);
        let schema = database.connection.query_row(
            "SELECT rootpage, sql FROM sqlite_master WHERE type = 'table' AND name = ?1",
            [name],
            |row| {
                let sql = row.get_ref(1)?.as_str_or_null().ok().flatten().unwrap_or_default();
                Ok((row.get::<_, i64>(0)?, sql.to_ascii_uppercase().contains("ROWID")))
            },
        );
        let (root, has_rowid_clause) = match schema {
            Err(rusqlite::Error::QueryReturnedNoRows) => return Ok(None),
            other => other.map_err(failed)?,
        };
        let root = u32::try_from(root).unwrap_or(0);
        let mut table = Self {
            name,
            columns,
            present: 0,
            positions: Vec::new(),
            root,
            direct: root > 0 && !has_rowid_clause,
            rowid: !has_rowid_clause,
        };
        let mut statement = database
            .connection
            .prepare("SELECT name, type, dflt_value, pk, hidden FROM pragma_table_xinfo(?1)")
            .map_err(failed)?;
        let mut rows = statement.query([name]).map_err(failed)?;
        let mut keys = (0, false);
        while let Some(row) = rows.next().map_err(failed)? {
            let text = |at| row.get_ref(at).ok().and_then(|value| value.as_str().ok());
            let is_integer = text(1).is_some_and(|kind| kind.eq_ignore_ascii_case("INTEGER"));
            let is_text = text(1).is_some_and(|kind| kind.eq_ignore_ascii_case("TEXT"));
            let number = |at| row.get::<_, i64>(at).unwrap_or(1);
            let position = text(0).and_then(|name| {
                columns.iter().position(|column| column.eq_ignore_ascii_case(name))
            });
            if let Some(position) = position {
                table.present |= 1 << position;
                // Other affinities convert values when they are read, and so does a default.
                table.direct &= (is_integer || is_text) && row.get_ref(2) == Ok(ValueRef::Null);
            }
            if number(3) > 0 {
                keys = (keys.0 + 1, is_integer);
            }
            // A computed column may be missing in the record.
            table.direct &= number(4) == 0;
            table.positions.push(position.map_or(SKIPPED_COLUMN, |position| position as u8));
        }
        // A single integer key is the rowid, and not in the record.
        table.direct &= keys != (1, true);
        while table.positions.last() == Some(&SKIPPED_COLUMN) {
            table.positions.pop();
        }
        Ok(Some(table))
    }

    /// Returns whether the table has a column.
    pub(crate) const fn has(&self, column: usize) -> bool {
        self.present & (1 << column) != 0
    }

    /// Returns an error if a required column is missing.
    pub(crate) fn require(
        &self,
        database: &Database,
        columns: &[usize],
    ) -> Result<(), ImportError> {
        let Some(&missing) = columns.iter().find(|&&column| !self.has(column)) else {
            return Ok(());
        };
        Err(ImportError::Broken {
            path: database.path().into(),
            problem: format!("column {} is missing", self.columns.get(missing).unwrap_or(&"")),
            location: format!("table {}", self.name),
            advice: "export it again: nsys export --type sqlite".into(),
        })
    }

    /// Passes all rows to a reader.
    pub(crate) fn rows(
        &self,
        database: &Database,
        order: RowOrder,
        reader: &mut impl RowReader<N>,
    ) -> Result<(), ImportError> {
        if self.direct && order == RowOrder::Stored {
            reader.begin()?;
            let io = |source| ImportError::Io { path: database.path().into(), source };
            let pages = PageReader::open(File::open(database.path()).map_err(io)?);
            match pages
                .and_then(|pages| pages.rows(self.root, &self.positions, |row| reader.row(row)))
            {
                Ok(done) => return done,
                Err(Failed::Io(source)) => return Err(io(source)),
                Err(Failed::Unusual) => {}
            }
        }
        reader.begin()?;
        self.rows_by_sqlite(database, order, reader)
    }

    fn rows_by_sqlite(
        &self,
        database: &Database,
        order: RowOrder,
        reader: &mut impl RowReader<N>,
    ) -> Result<(), ImportError> {
        let failed = |error| database.sqlite_error(&format!("table {}", self.name), &error);
        let mut statement = database.connection.prepare(&self.query(order)).map_err(failed)?;
        let mut rows = statement.query([]).map_err(failed)?;
        while let Some(values) = rows.next().map_err(failed)? {
            let mut row = RecordRow { values: [0; N], null: 0, wrong: 0, text: &[] };
            for (position, slot) in row.values.iter_mut().enumerate() {
                match values.get_ref(position).map_err(failed)? {
                    ValueRef::Null => row.null |= 1 << position,
                    ValueRef::Integer(value) => *slot = value,
                    ValueRef::Text(text) => {
                        row.wrong |= 1 << position;
                        row.text = if position + 1 == N { text } else { &[] };
                    }
                    ValueRef::Real(_) | ValueRef::Blob(_) => row.wrong |= 1 << position,
                }
            }
            reader.row(&row)?;
        }
        Ok(())
    }

    /// Returns the query. Names in it are constants, never from the file.
    fn query(&self, order: RowOrder) -> String {
        let mut columns = Vec::new();
        for (position, column) in self.columns.iter().enumerate() {
            columns.push(if self.has(position) { format!("\"{column}\"") } else { "NULL".into() });
        }
        let mut by = Vec::new();
        if let RowOrder::By(first) = order {
            by.push(first);
        }
        if self.rowid {
            by.push("rowid");
        }
        let by = if by.is_empty() { String::new() } else { format!("ORDER BY {}", by.join(", ")) };
        format!("SELECT {} FROM \"{}\" {by}", columns.join(", "), self.name)
    }
}

/// Receiver of the rows of a table.
pub(crate) trait RowReader<const N: usize> {
    /// Called before the first row. If it is called again, all rows so far are void.
    fn begin(&mut self) -> Result<(), ImportError>;
    /// Called for each row.
    fn row(&mut self, row: &RecordRow<'_, N>) -> Result<(), ImportError>;
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;

    #[derive(Default)]
    struct CollectAll(Vec<(Vec<Option<i64>>, u32, Vec<u8>)>);

    impl<const N: usize> RowReader<N> for CollectAll {
        fn begin(&mut self) -> Result<(), ImportError> {
            self.0.clear();
            Ok(())
        }

        fn row(&mut self, row: &RecordRow<'_, N>) -> Result<(), ImportError> {
            let values = (0..N).map(|column| row.int(column)).collect();
            self.0.push((values, row.wrong, row.text.to_vec()));
            Ok(())
        }
    }

    /// Reads a table in both ways; returns the number of rows and whether the direct way worked.
    fn both<const N: usize>(
        path: &Path,
        name: &'static str,
        columns: [&'static str; N],
    ) -> Option<(usize, bool)> {
        let database = Database::open(path).unwrap();
        let table = Table::find(&database, name, columns).unwrap()?;
        let (mut fast, mut slow) = (CollectAll::default(), CollectAll::default());
        table.rows(&database, RowOrder::Stored, &mut fast).unwrap();
        table.rows_by_sqlite(&database, RowOrder::Stored, &mut slow).unwrap();
        assert_eq!(fast.0, slow.0);
        let pages = PageReader::open(File::open(path).unwrap());
        let read =
            pages.and_then(|pages| {
                pages.rows(table.root, &table.positions, |_: &RecordRow<'_, N>| {
                    Ok::<_, ImportError>(())
                })
            });
        Some((slow.0.len(), table.direct && read.is_ok()))
    }

    #[test]
    fn both_ways_read_the_same_rows_of_a_real_file() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = path.join("tests/import/nsys/h200-2024.2.3.sqlite");
        let found =
            both(&path, crate::import::nsys::EVENTS, crate::import::nsys::matching::COLUMNS);
        assert_eq!(found, Some((42, true)));
        let calls = ["eventClass", "globalTid", "correlationId", "nameId", "returnValue", "end"];
        assert_eq!(both(&path, "CUPTI_ACTIVITY_KIND_RUNTIME", calls), Some((96, true)));
        let chains = ["stackDepth", "id", "nothing", "symbol"];
        assert_eq!(both(&path, "CUDA_CALLCHAINS", chains), Some((241, true)));
        // An integer key is not in the record, so this table is read by SQLite.
        assert_eq!(both(&path, "StringIds", ["id", "value"]), Some((515, false)));
        assert_eq!(both(&path, "NO_TABLE", ["id"]), None);
    }

    #[test]
    fn io_errors_do_not_fall_back_to_sqlite() {
        // A directory can be opened but not read.
        let directory = TempDir::new().unwrap();
        let failed = PageReader::open(File::open(directory.path()).unwrap()).unwrap_err();
        assert!(matches!(failed, Failed::Io(_)), "{failed:?}");
        let short = directory.path().join("short");
        std::fs::write(&short, b"SQLite format 3\0").unwrap();
        let failed = PageReader::open(File::open(short).unwrap()).unwrap_err();
        assert!(matches!(failed, Failed::Unusual), "{failed:?}");
    }

    #[test]
    fn unsupported_tables_fall_back_to_sqlite() {
        let dir = TempDir::new().unwrap();
        for (name, statements) in [
            ("real", "CREATE TABLE t (a REAL, b INTEGER); INSERT INTO t VALUES (1, 2)"),
            (
                "key",
                "CREATE TABLE t (a INTEGER PRIMARY KEY, b INTEGER); INSERT INTO t VALUES (7, 2)",
            ),
            (
                "default",
                "CREATE TABLE t (b INTEGER); INSERT INTO t VALUES (1); \
                 ALTER TABLE t ADD COLUMN a INTEGER DEFAULT 5",
            ),
            (
                "computed",
                "CREATE TABLE t (b INTEGER, a INTEGER AS (b + 1)); INSERT INTO t VALUES (1)",
            ),
            (
                "without",
                "CREATE TABLE t (a INTEGER, b INTEGER, PRIMARY KEY (a, b)) WITHOUT ROWID; \
                 INSERT INTO t VALUES (1, 2)",
            ),
            (
                "wide",
                "PRAGMA encoding = 'UTF-16'; CREATE TABLE t (a TEXT, b INTEGER); INSERT INTO t VALUES ('x', 2)",
            ),
        ] {
            let path = dir.path().join(name);
            rusqlite::Connection::open(&path).unwrap().execute_batch(statements).unwrap();
            assert_eq!(both(&path, "t", ["a", "b"]), Some((1, false)), "{name}");
        }
    }

    /// A value in SQL.
    fn value() -> impl Strategy<Value = String> {
        prop_oneof![
            4 => any::<i64>().prop_map(|value| value.to_string()),
            4 => (-300_i64..70_000).prop_map(|value| value.to_string()),
            2 => Just("0".to_owned()),
            2 => Just("1".to_owned()),
            2 => Just("NULL".to_owned()),
            1 => Just("1.5".to_owned()),
            1 => (0_usize..12_000).prop_map(|length| format!("'{}'", "x".repeat(length))),
            1 => (0_usize..40).prop_map(|length| format!("zeroblob({length})")),
        ]
    }

    proptest! {
        #![proptest_config(crate::random::config(60))]

        #[test]
        fn both_ways_read_the_same_rows_of_any_table(
            page in proptest::sample::select(vec![512, 1024, 4096, 65536]),
            rows in proptest::collection::vec((value(), value(), value(), value()), 0..200),
            deleted in 1_usize..20,
        ) {
            let dir = TempDir::new().unwrap();
            let path = dir.path().join("any");
            let database = rusqlite::Connection::open(&path).unwrap();
            let mut statements = format!(
                "PRAGMA page_size = {page}; BEGIN; \
                 CREATE TABLE t (a INTEGER, b INTEGER, c TEXT, d INTEGER);"
            );
            for (a, b, c, d) in &rows {
                statements.push_str(&format!("INSERT INTO t VALUES ({a}, {b}, {c}, {d});"));
            }
            statements.push_str(&format!("DELETE FROM t WHERE rowid % {deleted} = 3;"));
            statements.push_str("ALTER TABLE t ADD COLUMN e INTEGER; INSERT INTO t VALUES (1, 2, 'c', 4, 5); COMMIT;");
            database.execute_batch(&statements).unwrap();
            drop(database);
            let (_, fast) = both(&path, "t", ["d", "a", "e", "c"]).unwrap();
            prop_assert!(fast);
        }
    }
}
