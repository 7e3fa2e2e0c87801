//! Options whose value is one of a few words.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// A word, its help, and the value that it stands for.
pub(super) type Choice<T> = (&'static str, &'static str, T);

/// Returns a parser of these words.
pub(super) fn choice<T: Copy + Send + Sync>(
    all: &'static [Choice<T>],
) -> impl TypedValueParser<Value = T> {
    let words = all.iter().map(|(word, help, _)| {
        PossibleValue::new(*word).help(Some(*help).filter(|help| !help.is_empty()))
    });
    PossibleValuesParser::new(words).try_map(move |text| {
        let found = all.iter().find(|(word, ..)| *word == text);
        found.map(|(.., value)| *value).ok_or("unknown word")
    })
}
