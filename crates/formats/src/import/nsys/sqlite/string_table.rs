//! Strings of the table `StringIds`. It also contains environments of processes, so a string is
//! read only if something that is shown refers to it, and only up to its first NUL.

use rusqlite::Statement;

use super::database::Database;
use crate::import::ImportError;

/// Maximum length of a string, in bytes.
const MAX_STRING_BYTES: usize = 4096;

/// Maximum number of lookups if the table has no key, so that each scans all of it.
const MAX_UNINDEXED_LOOKUPS: u32 = 1000;

/// Strings of a file.
#[derive(Debug)]
pub(crate) struct StringTable<'d> {
    statement: Option<Statement<'d>>,
    remaining_lookups: Option<u32>,
}

impl<'d> StringTable<'d> {
    /// Prepares the lookup; a file without the table has no strings.
    pub(crate) fn new(database: &'d Database) -> Result<Self, ImportError> {
        let failed = |error| database.sqlite_error("table StringIds", &error);
        let columns: Result<Vec<i64>, _> = database
            .connection
            .prepare("SELECT pk FROM pragma_table_info('StringIds') WHERE name IN ('id', 'value')")
            .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect());
        let columns = columns.map_err(failed)?;
        let keyed = columns.contains(&1);
        let statement = match columns.len() {
            2 => {
                let query = "SELECT CAST(value AS BLOB) FROM StringIds WHERE id = ?1";
                Some(database.connection.prepare(query).map_err(failed)?)
            }
            _ => None,
        };
        Ok(Self { statement, remaining_lookups: (!keyed).then_some(MAX_UNINDEXED_LOOKUPS) })
    }

    /// Returns the string of an id, if it exists.
    pub(crate) fn get(&mut self, id: i64) -> Option<String> {
        if let Some(remaining) = &mut self.remaining_lookups {
            *remaining = remaining.checked_sub(1)?;
        }
        let statement = self.statement.as_mut()?;
        statement.query_row([id], |row| Ok(row.get_ref(0)?.as_bytes().ok().map(text))).ok()?
    }
}

/// Converts bytes of a file to text: up to the first NUL, and at most `MAX_STRING_BYTES`.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len()).min(MAX_STRING_BYTES);
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}
