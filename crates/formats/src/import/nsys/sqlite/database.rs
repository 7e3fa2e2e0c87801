//! A SQLite file, opened so that nothing is written and nothing hostile is run; and SQLite errors
//! with advice.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::import::ImportError;

/// An open database.
#[derive(Debug)]
pub(crate) struct Database {
    path: PathBuf,
    pub(crate) connection: Connection,
}

impl Database {
    /// Opens a file for reading. Without a write-ahead log no process is writing, so no lock is
    /// taken and the directory of the file may be read-only.
    pub(crate) fn open(path: &Path) -> Result<Self, ImportError> {
        check_length(path)?;
        if has_content(&with_suffix(path, "-journal")) {
            return Err(ImportError::Broken {
                path: path.into(),
                problem: "another program is writing it, or died while it did".into(),
                location: "its -journal file".into(),
                advice: "wait for the export to end, or export it again".into(),
            });
        }
        let logged = has_content(&with_suffix(path, "-wal"));
        let uri = uri(path, !logged)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
            | OpenFlags::SQLITE_OPEN_URI
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(uri, flags)
            .map_err(|error| sqlite_error(path, "the file", &error))?;
        let database = Self { path: path.into(), connection };
        // Expressions of a hostile schema must not call functions with side effects, and no value
        // of the file needs more memory than this.
        database
            .connection
            .execute_batch("PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON;")
            .map_err(|error| database.sqlite_error("the header", &error))?;
        database
            .connection
            .set_limit(rusqlite::limits::Limit::SQLITE_LIMIT_LENGTH, 16 << 20)
            .map_err(|error| database.sqlite_error("the header", &error))?;
        Ok(database)
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the names of tables, at most a thousand.
    pub(crate) fn tables(&self) -> Result<Vec<String>, ImportError> {
        let location = "the schema";
        let mut names = Vec::new();
        let mut statement = self
            .connection
            .prepare("SELECT CAST(name AS BLOB) FROM sqlite_master WHERE type = 'table' LIMIT 1000")
            .map_err(|error| self.sqlite_error(location, &error))?;
        let mut rows = statement.query([]).map_err(|error| self.sqlite_error(location, &error))?;
        while let Some(row) = rows.next().map_err(|error| self.sqlite_error(location, &error))? {
            let name = row.get_ref(0).ok().and_then(|value| value.as_bytes().ok());
            names.push(String::from_utf8_lossy(name.unwrap_or_default()).into_owned());
        }
        Ok(names)
    }

    /// Converts a SQLite error.
    pub(crate) fn sqlite_error(&self, location: &str, error: &rusqlite::Error) -> ImportError {
        sqlite_error(&self.path, location, error)
    }
}

/// Detects a truncated file before SQLite reads it.
fn check_length(path: &Path) -> Result<(), ImportError> {
    let io = |source| ImportError::Io { path: path.into(), source };
    let mut file = File::open(path).map_err(io)?;
    let length = file.metadata().map_err(io)?.len();
    let mut header = Vec::new();
    file.by_ref().take(100).read_to_end(&mut header).map_err(io)?;
    let number = |at: usize| -> u64 {
        let bytes = header.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, |bytes| u64::from(u32::from_be_bytes(bytes)))
    };
    let page = match (number(14) & 0xffff) as u32 {
        1 => 65536,
        size => u64::from(size),
    };
    // The page count is valid only if its version is that of the last change.
    let expected = if number(24) == number(92) { number(28) * page } else { 0 };
    if length < 100 || length < expected {
        return Err(ImportError::Broken {
            path: path.into(),
            problem: format!("the file is cut: it has {length} of {} bytes", expected.max(100)),
            location: "its end".into(),
            advice: "copy or export it again".into(),
        });
    }
    Ok(())
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn has_content(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.len() > 0)
}

/// Returns the path as a SQLite URI, with all special characters escaped.
fn uri(path: &Path, immutable: bool) -> Result<String, ImportError> {
    let io = |source| ImportError::Io { path: path.into(), source };
    let path = std::path::absolute(path).map_err(io)?;
    let mut uri = String::from("file://");
    for &byte in path.as_os_str().as_encoded_bytes() {
        if byte.is_ascii_alphanumeric() || b"/-_.".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            uri.push_str(&format!("%{byte:02X}"));
        }
    }
    uri.push_str(if immutable { "?mode=ro&immutable=1" } else { "?mode=ro" });
    Ok(uri)
}

fn sqlite_error(path: &Path, location: &str, error: &rusqlite::Error) -> ImportError {
    let (problem, advice) = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            ("another program has locked it", "wait until that is done, or copy the file")
        }
        Some(ErrorCode::NotADatabase) => {
            ("encrypted, or not a SQLite file", "export it again: nsys export --type sqlite")
        }
        Some(ErrorCode::DatabaseCorrupt) => {
            ("the file is damaged", "copy it again, or export it again: nsys export --type sqlite")
        }
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly) => (
            "it cannot be opened with its write-ahead log (-wal file)",
            "copy both to a writable directory",
        ),
        _ => ("SQLite cannot read it", "export it again: nsys export --type sqlite"),
    };
    ImportError::Broken {
        path: path.into(),
        problem: format!("{problem} (SQLite says: {error})"),
        location: location.into(),
        advice: advice.into(),
    }
}
