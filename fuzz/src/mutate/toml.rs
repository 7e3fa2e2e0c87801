//! Configuration files: keys that exist, with values of their type.

use std::sync::LazyLock;

use super::{Random, text};

/// The page that lists every key with a value.
const REFERENCE: &str = include_str!("../../../docs/reference/config.md");

/// Sections of a file: a header, empty for the first one, and the lines after it.
type Section<'a> = (&'a str, Vec<&'a str>);

/// Every section with all of its keys.
static ALL: LazyLock<Vec<Section<'static>>> = LazyLock::new(|| {
    let block = REFERENCE.split("\n```toml\n").nth(1).and_then(|text| text.split("\n```").next());
    // Comments are `# Text`; keys without a default are `#key = value`.
    let is_key = |line: &&str| !line.is_empty() && !line.starts_with("# ");
    let lines = block.into_iter().flat_map(str::lines).filter(is_key);
    sections(lines.map(|line| line.trim_start_matches('#')))
});

fn sections<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<Section<'a>> {
    let mut sections = vec![("", Vec::new())];
    for line in lines {
        match sections.last_mut() {
            Some((_, lines)) if !line.starts_with('[') => lines.push(line),
            _ => sections.push((line, Vec::new())),
        }
    }
    sections
}

/// Adds a key, or changes or removes one; rarely changes any lines.
pub fn config(bytes: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let file = std::str::from_utf8(bytes).ok()?;
    if random.below(6) == 0 {
        return text::lines(bytes, random);
    }
    let changed;
    let mut sections = sections(file.lines());
    if random.below(2) == 0 {
        let (header, keys) = random.one_of(&ALL)?;
        let line = *random.one_of(keys)?;
        let key = line.split('=').next()?;
        // Sections in two brackets may occur more than once.
        let is_new = header.starts_with("[[") && random.below(3) == 0;
        let found = sections.iter().position(|section| section.0 == *header && !is_new);
        let at = found.unwrap_or_else(|| {
            sections.push((header, Vec::new()));
            sections.len() - 1
        });
        let lines = &mut sections.get_mut(at)?.1;
        lines.retain(|old| !old.starts_with(key));
        lines.push(line);
    } else {
        let with_lines = sections.iter().filter(|section| !section.1.is_empty()).count();
        let number = random.below(with_lines);
        let mut with_lines = sections.iter_mut().filter(|section| !section.1.is_empty());
        let lines = &mut with_lines.nth(number)?.1;
        let at = random.below(lines.len());
        if random.below(4) == 0 {
            lines.remove(at);
        } else {
            changed = change_value(lines.get(at)?, random);
            *lines.get_mut(at)? = &changed;
        }
    }
    let lines = sections
        .iter()
        .flat_map(|(header, lines)| [*header].into_iter().chain(lines.iter().copied()));
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    Some((lines.join("\n") + "\n").into_bytes())
}

/// Replaces the value of a line by one of the same type; rarely by that of any key.
fn change_value(line: &str, random: &mut Random) -> String {
    const UNITS: [&str; 10] = ["", "K", "M", "G", "T", "ms", "s", "m", "h", "d"];
    let Some((key, value)) = line.split_once(" = ") else { return line.to_owned() };
    let number = random.number();
    let mut other = |is_like: fn(&str, &str) -> bool| {
        let values =
            ALL.iter().flat_map(|(_, lines)| lines).filter_map(|line| line.split_once(" = "));
        let values: Vec<_> = values.filter(|(_, other)| is_like(other, value)).collect();
        random.one_of(&values).map_or(value, |(_, value)| value).to_owned()
    };
    let new = match (number % 8, value.as_bytes()) {
        (0, _) => other(|_, _| true),
        (1, [b'"', ..]) => format!("\"{number}{}\"", UNITS[random.below(UNITS.len())]),
        (_, [b'"' | b'[', ..]) if number % 2 == 0 => {
            other(|one, other| one.as_bytes().first() == other.as_bytes().first())
        }
        (_, [b't', ..]) => "false".to_owned(),
        (_, [b'f', ..]) => "true".to_owned(),
        (_, [b'[', ..]) => format!("{}, {}", value.trim_end_matches(']'), &value[1..]),
        (_, [b'0'..=b'9', ..]) if value.contains('.') => format!("0.{number}"),
        (_, [b'0'..=b'9', ..]) => number.to_string(),
        _ => {
            let mut bytes = value.trim_matches('"').as_bytes().to_vec();
            text::change_line(&mut bytes, random);
            let text = String::from_utf8_lossy(&bytes);
            format!("\"{}\"", text.replace(['"', '\\', '\n'], ""))
        }
    };
    format!("{key} = {new}")
}
