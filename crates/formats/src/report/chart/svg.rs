//! SVG output of a scene. Colors are CSS classes, so that one file suits light and dark.

use std::fmt::Write as _;
use std::io::{self, Write};

use super::Theme;
use super::scene::{Paint, Scene, Shape, TextAnchor};
use crate::export::escape;

/// Writes a scene.
pub(super) fn write(out: &mut dyn Write, scene: &Scene, theme: Theme) -> io::Result<()> {
    let (width, height) = scene.size;
    let label = escape(&scene.label);
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{label}\" \
         font-family=\"DejaVu Sans, Verdana, system-ui, sans-serif\">\n<title>{label}</title>"
    )?;
    let first = if theme == Theme::Auto { Theme::Light } else { theme };
    write!(out, "<style>{}", rules(first))?;
    if theme == Theme::Auto {
        write!(out, "@media (prefers-color-scheme: dark) {{ {} }}", rules(Theme::Dark))?;
    }
    writeln!(out, "</style>")?;
    for shape in &scene.shapes {
        writeln!(out, "{}", element(shape))?;
    }
    writeln!(out, "</svg>")
}

fn rules(theme: Theme) -> String {
    let mut rules = String::new();
    for paint in Paint::all() {
        let (class, color) = (paint.class(), paint.color(theme));
        // Writing to a string cannot fail.
        let _ = write!(rules, ".{class}{{fill:{color}}}.s{class}{{stroke:{color};fill:none}}");
    }
    rules
}

fn element(shape: &Shape) -> String {
    match shape {
        Shape::Box(paint, [x, y, width, height]) => format!(
            "<rect class=\"{}\" x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" \
             height=\"{height:.2}\"/>",
            paint.class()
        ),
        Shape::Area(paint, points) => {
            format!("<path class=\"{}\" d=\"{}Z\"/>", paint.class(), path(points))
        }
        Shape::Line { paint, width, dashed, points } => {
            let dashes = if *dashed { " stroke-dasharray=\"4 3\"" } else { "" };
            format!(
                "<path class=\"s{}\" stroke-width=\"{width}\"{dashes} d=\"{}\"/>",
                paint.class(),
                path(points)
            )
        }
        Shape::Dot(paint, (x, y)) => {
            format!("<circle class=\"{}\" cx=\"{x:.2}\" cy=\"{y:.2}\" r=\"3.5\"/>", paint.class())
        }
        Shape::Text { paint, at: (x, y), size, anchor, bold, text } => {
            let anchor = match anchor {
                TextAnchor::Left => "start",
                TextAnchor::Middle => "middle",
                TextAnchor::Right => "end",
            };
            let weight = if *bold { " font-weight=\"bold\"" } else { "" };
            format!(
                "<text class=\"{}\" x=\"{x:.2}\" y=\"{y:.2}\" font-size=\"{size}\" \
                 text-anchor=\"{anchor}\"{weight}>{}</text>",
                paint.class(),
                escape(text)
            )
        }
    }
}

/// Returns a path through points; horizontal and vertical steps are written with one coordinate.
fn path(points: &[(f64, f64)]) -> String {
    let mut text = String::new();
    let mut last: Option<(String, String)> = None;
    for (x, y) in points {
        let (x, y) = (short(*x), short(*y));
        let _ = match &last {
            None => write!(text, "M{x} {y}"),
            Some((before, _)) if *before == x => write!(text, "V{y}"),
            Some((_, before)) if *before == y => write!(text, "H{x}"),
            Some(_) => write!(text, "L{x} {y}"),
        };
        last = Some((x, y));
    }
    text
}

fn short(number: f64) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
