//! Errors quote the name of a file, its tables and its columns. None of these may control or flood
//! a terminal.

use std::collections::HashMap;
use std::path::Path;

use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field, Schema};
use formats::recording::{VERSION, VERSION_KEY};
use tempfile::TempDir;

use crate::collect::Collected;

/// Clears the screen, sets the title, returns to the start of the line; C1 controls do the same in one character.
const HOSTILE: &str = "a\x1b[2J\x1b]0;t\x07\r\n\u{9b}31m\u{202e}\u{7f}b";

fn error(path: &Path) -> String {
    Collected::read(path).err().unwrap().to_string()
}

fn assert_safe(text: &str) {
    assert!(!text.chars().any(|c| c.is_control() || c == '\u{202e}'), "{text:?}");
    assert!(text.contains("\\u{1b}"), "the name is not escaped: {text}");
    assert!(text.len() < 3000, "{} bytes", text.len());
}

#[test]
fn sqlite_error_text_is_escaped_and_bounded() {
    let directory = TempDir::new().unwrap();
    for length in [1, 10_000] {
        let path = directory.path().join(format!("{length}.sqlite"));
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection.execute_batch("CREATE TABLE a (b); PRAGMA writable_schema = ON").unwrap();
        let insert = "INSERT INTO sqlite_master VALUES ('table', ?1, ?1, 2, 'CREATE nonsense')";
        connection.execute(insert, [HOSTILE.repeat(length)]).unwrap();
        drop(connection);
        let text = error(&path);
        assert!(text.contains("malformed database schema"), "{text}");
        assert_safe(&text);
    }
}

#[test]
fn arrow_field_names_are_escaped_and_bounded() {
    let directory = TempDir::new().unwrap();
    for length in [1, 10_000] {
        let path = directory.path().join(format!("{length}.arrows"));
        let item = Field::new(HOSTILE.repeat(length), DataType::UInt64, true);
        let fields = vec![
            Field::new("type", DataType::Utf8, false),
            Field::new("last_shape", DataType::List(item.into()), true),
        ];
        let metadata = HashMap::from([(VERSION_KEY.to_owned(), VERSION.to_string())]);
        let schema = Schema::new_with_metadata(fields, metadata);
        let file = std::fs::File::create(&path).unwrap();
        StreamWriter::try_new(file, &schema).unwrap().finish().unwrap();
        assert_safe(&error(&path));
    }
}

#[test]
fn file_names_are_escaped_in_errors() {
    let directory = TempDir::new().unwrap();
    let contents: [&[u8]; 4] =
        [b"", b"\x1f\x8b", b"SQLite format 3\0", b"\xff\xff\xff\xff\x10\0\0\0"];
    for content in contents {
        let path = directory.path().join(HOSTILE);
        std::fs::write(&path, content).unwrap();
        assert_safe(&error(&path));
    }
    assert_safe(&error(&directory.path().join("missing").join(HOSTILE)));
}

#[test]
fn generated_files_without_length_are_not_read() {
    // Reading /proc/kmsg blocks until the next kernel message; procfs files report a length of 0.
    for path in ["/proc/self/status", "/proc/kmsg"] {
        let text = error(Path::new(path));
        assert!(text.contains("has no length"), "{text}");
    }
}
