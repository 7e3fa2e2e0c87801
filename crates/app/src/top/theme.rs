//! Colors, and characters for terminals that have only ASCII.

use clap::ValueEnum;
use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier, Style};

/// Colors of the view.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum Theme {
    /// For a dark background
    #[default]
    Dark,
    /// For a light background
    Light,
    /// Bold and reverse only
    Mono,
}

impl Theme {
    /// Returns the theme to start with: without colors if `NO_COLOR` is set or the terminal is dumb.
    pub(crate) fn of(requested: Option<Self>) -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        match requested {
            Some(theme) => theme,
            None if no_color || is_dumb => Self::Mono,
            None => Self::Dark,
        }
    }

    /// Returns the next theme.
    pub(crate) const fn next(self) -> Self {
        match self {
            Self::Dark => Self::Light,
            Self::Light => Self::Mono,
            Self::Mono => Self::Dark,
        }
    }

    /// Returns the style of a tone.
    pub(crate) fn style(self, tone: Tone) -> Style {
        let plain = Style::new();
        let bold = plain.add_modifier(Modifier::BOLD);
        let color = |dark: Color, light: Color| match self {
            Self::Dark => plain.fg(dark),
            Self::Light => plain.fg(light),
            Self::Mono => plain,
        };
        match tone {
            Tone::Plain => plain,
            Tone::Strong => bold,
            Tone::Dim if self == Self::Mono => plain,
            Tone::Dim => color(Color::Gray, Color::DarkGray),
            Tone::Alarm => color(Color::LightRed, Color::Red).add_modifier(Modifier::BOLD),
            Tone::Warning => color(Color::Yellow, Color::Magenta),
            // The usual green is hardly legible on white.
            Tone::Good => color(Color::Green, Color::Indexed(28)),
            Tone::Title => color(Color::Cyan, Color::Blue).add_modifier(Modifier::BOLD),
            Tone::Chart => color(Color::LightBlue, Color::Blue),
            Tone::Selected => plain.add_modifier(Modifier::REVERSED),
        }
    }
}

/// What a text means.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Tone {
    #[default]
    Plain,
    Strong,
    Dim,
    Alarm,
    Warning,
    Good,
    Title,
    Chart,
    Selected,
}

/// Replaces everything that is not ASCII.
pub(crate) fn to_ascii(buffer: &mut Buffer) {
    for cell in &mut buffer.content {
        let symbol = cell.symbol();
        if symbol.is_ascii() {
            continue;
        }
        let replaced = match symbol {
            "▁" => "_",
            "▂" => ".",
            "▃" => ",",
            "▄" => "-",
            "▅" => "=",
            "▆" => "+",
            "▇" => "*",
            "█" => "#",
            "·" | "•" => ".",
            "─" => "-",
            "┬" => "+",
            "│" | "├" | "└" => "|",
            "▸" | "›" | "→" => ">",
            "▾" | "↓" => "v",
            "▴" | "↑" => "^",
            "←" => "<",
            "…" => "~",
            "µ" => "u",
            "¹" => "1",
            "²" => "2",
            "³" => "3",
            _ => "?",
        };
        cell.set_symbol(replaced);
    }
}
