//! Requests: paths that exist, with parameters, and any lines.

use std::sync::LazyLock;

use super::{Random, text};

/// The source that lists every path.
const ROUTES: &str = include_str!("../../../crates/agent/src/api/routes.rs");

static PATHS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    ROUTES.split(".route(\"").skip(1).filter_map(|text| text.split('"').next()).collect()
});

/// Changes the path of the first request, or any lines.
pub fn request(bytes: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    if random.below(2) == 0 {
        return text::lines(bytes, random);
    }
    let mut parts = bytes.splitn(3, |byte| *byte == b' ');
    let (method, old, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let mut path = match random.below(2) {
        0 => random.one_of(&PATHS)?.as_bytes().to_vec(),
        _ => old.to_vec(),
    };
    match random.below(4) {
        0 => {
            let name = ["pid", "limit", "x"][random.below(3)];
            let value = [7, random.number()][random.below(2)];
            let separator = if path.contains(&b'?') { '&' } else { '?' };
            path.extend(format!("{separator}{name}={value}").into_bytes());
        }
        1 => text::change_line(&mut path, random),
        _ => {
            let text = String::from_utf8_lossy(&path);
            let text = text.replace("{pid}", "7").replace("{id}", "one").replace("{file}", "a.txt");
            path = text.into_bytes();
        }
    }
    Some([method, &path, rest].join(&b' '))
}
