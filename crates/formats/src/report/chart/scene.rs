//! A chart as a list of shapes.

use super::Theme;

/// Color role of a shape; the theme maps it to a color.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Paint {
    Page,
    Text,
    Dim,
    Grid,
    Alarm,
    Band(usize),
    Rest,
}

/// Anchor of a text relative to its point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TextAnchor {
    Left,
    Middle,
    Right,
}

/// A shape to draw.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Shape {
    /// A filled rectangle: left, top, width, height.
    Box(Paint, [f64; 4]),
    /// A filled polygon.
    Area(Paint, Vec<(f64, f64)>),
    /// A line.
    Line { paint: Paint, width: f64, dashed: bool, points: Vec<(f64, f64)> },
    /// A disc.
    Dot(Paint, (f64, f64)),
    /// A text, positioned by its baseline.
    Text { paint: Paint, at: (f64, f64), size: f64, anchor: TextAnchor, bold: bool, text: String },
}

/// A chart, laid out.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Scene {
    pub(super) size: (f64, f64),
    /// Description of the chart in one sentence.
    pub(super) label: String,
    pub(super) shapes: Vec<Shape>,
}

/// Number of band colors; further bands start again.
pub(super) const BAND_COLORS: usize = 12;

/// Page, text, dim text, grid, alarm, the rest; then bands.
const LIGHT: [&str; 6 + BAND_COLORS] = [
    "#ffffff", "#1b2130", "#5d6679", "#e3e6ec", "#b3261e", "#b4bac6", "#3b6fd4", "#e08a2e",
    "#3f9c6b", "#9a62c7", "#d2504c", "#2a9fb0", "#b98a1f", "#d0649a", "#6b7f2e", "#7a6a5c",
    "#5d8df0", "#f0a860",
];

const DARK: [&str; 6 + BAND_COLORS] = [
    "#161a22", "#e6e9f0", "#98a2b6", "#2b313e", "#ff8a80", "#566074", "#6f9cf5", "#f0a458",
    "#5fc48f", "#ba8be8", "#ee7a72", "#4fc1d2", "#d8ac47", "#ea8bbd", "#a0b85a", "#b3a28f",
    "#4a78d6", "#c97f33",
];

impl Paint {
    /// Returns every paint.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let fixed = [Self::Page, Self::Text, Self::Dim, Self::Grid, Self::Alarm, Self::Rest];
        fixed.into_iter().chain((0..BAND_COLORS).map(Self::Band))
    }

    fn index(self) -> usize {
        match self {
            Self::Page => 0,
            Self::Text => 1,
            Self::Dim => 2,
            Self::Grid => 3,
            Self::Alarm => 4,
            Self::Rest => 5,
            Self::Band(band) => 6 + band % BAND_COLORS,
        }
    }

    /// Returns the color as `#rrggbb`.
    pub(super) fn color(self, theme: Theme) -> &'static str {
        let colors = if theme == Theme::Dark { &DARK } else { &LIGHT };
        colors[self.index()]
    }

    /// Returns the CSS class of the paint.
    pub(super) fn class(self) -> String {
        format!("c{}", self.index())
    }
}
