//! PNG output of a scene.

use std::io::{self, Write};

use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};
use tiny_skia::{
    Color, FillRule, LineCap, Paint as Ink, Path, PathBuilder, Pixmap, Rect, Stroke, StrokeDash,
    Transform,
};

use super::Theme;
use super::glyphs::{self, EM};
use super::scene::{Paint, Scene, Shape, TextAnchor};

/// Pixels per unit.
const SCALE: f32 = 2.0;

/// Writes a scene.
pub(super) fn write(out: &mut dyn Write, scene: &Scene, theme: Theme) -> io::Result<()> {
    let (width, height) = scene.size;
    let pixels = |units: f64| (units as f32 * SCALE).ceil() as u32;
    let mut map = Pixmap::new(pixels(width), pixels(height))
        .ok_or_else(|| io::Error::other("the picture is too big; choose a smaller --size"))?;
    for shape in &scene.shapes {
        draw(&mut map, shape, theme);
    }
    encode(out, &map)
}

fn ink(paint: Paint, theme: Theme) -> Ink<'static> {
    let part = |from: usize| {
        let digits = paint.color(theme).get(from..from + 2).unwrap_or("00");
        u8::from_str_radix(digits, 16).unwrap_or(0)
    };
    let mut ink = Ink::default();
    ink.set_color(Color::from_rgba8(part(1), part(3), part(5), 255));
    ink.anti_alias = true;
    ink
}

fn draw(map: &mut Pixmap, shape: &Shape, theme: Theme) {
    let scale = Transform::from_scale(SCALE, SCALE);
    match shape {
        Shape::Box(paint, [x, y, width, height]) => {
            if let Some(rect) = Rect::from_xywh(*x as f32, *y as f32, *width as f32, *height as f32)
            {
                map.fill_rect(rect, &ink(*paint, theme), scale, None);
            }
        }
        Shape::Area(paint, points) => {
            if let Some(path) = through(points, true) {
                map.fill_path(&path, &ink(*paint, theme), FillRule::Winding, scale, None);
            }
        }
        Shape::Line { paint, width, dashed, points } => {
            let dash = dashed.then(|| StrokeDash::new(vec![4.0, 3.0], 0.0)).flatten();
            let (width, line_cap) = (*width as f32, LineCap::Butt);
            let stroke = Stroke { width, line_cap, dash, ..Stroke::default() };
            if let Some(path) = through(points, false) {
                map.stroke_path(&path, &ink(*paint, theme), &stroke, scale, None);
            }
        }
        Shape::Dot(paint, (x, y)) => {
            if let Some(path) = PathBuilder::from_circle(*x as f32, *y as f32, 3.5) {
                map.fill_path(&path, &ink(*paint, theme), FillRule::Winding, scale, None);
            }
        }
        Shape::Text { paint, at, size, anchor, bold, text } => {
            let room = glyphs::width(text, *size);
            let left = match anchor {
                TextAnchor::Left => at.0,
                TextAnchor::Middle => at.0 - room / 2.0,
                TextAnchor::Right => at.0 - room,
            };
            letters(map, text, (left, at.1), *size, *bold, &ink(*paint, theme));
        }
    }
}

fn through(points: &[(f64, f64)], closed: bool) -> Option<Path> {
    let mut path = PathBuilder::new();
    for (index, (x, y)) in points.iter().enumerate() {
        let (x, y) = (*x as f32, *y as f32);
        if index == 0 { path.move_to(x, y) } else { path.line_to(x, y) }
    }
    if closed {
        path.close();
    }
    path.finish()
}

/// Draws text; bold text gets an outline.
fn letters(map: &mut Pixmap, text: &str, at: (f64, f64), size: f64, bold: bool, ink: &Ink<'_>) {
    let mut x = at.0;
    let scale = size / EM;
    for character in text.chars() {
        let glyph = glyphs::glyph(character);
        if let Some(path) = outline(glyph.outline) {
            let (unit, move_x, move_y) = (scale as f32, x as f32, at.1 as f32);
            let transform = Transform::from_row(unit, 0.0, 0.0, -unit, move_x, move_y);
            let transform = transform.post_scale(SCALE, SCALE);
            map.fill_path(&path, ink, FillRule::Winding, transform, None);
            if bold {
                let stroke = Stroke { width: 90.0, ..Stroke::default() };
                map.stroke_path(&path, ink, &stroke, transform, None);
            }
        }
        x += glyph.advance * scale;
    }
}

fn outline(outline: &'static str) -> Option<Path> {
    let mut path = PathBuilder::new();
    for (letter, [a, b, c, d]) in glyphs::steps(outline) {
        let [a, b, c, d] = [a, b, c, d].map(|number| number as f32);
        match letter {
            b'M' => path.move_to(a, b),
            b'L' => path.line_to(a, b),
            b'Q' => path.quad_to(a, b, c, d),
            _ => path.close(),
        }
    }
    path.finish()
}

/// Writes the file: a header, all rows in one chunk, an end. Charts are opaque, so no alpha channel
/// is written.
fn encode(out: &mut dyn Write, map: &Pixmap) -> io::Result<()> {
    out.write_all(b"\x89PNG\r\n\x1a\n")?;
    let mut head = Vec::new();
    head.extend(map.width().to_be_bytes());
    head.extend(map.height().to_be_bytes());
    // 8 bits of red, green and blue; default compression and filtering, not interlaced.
    head.extend([8, 2, 0, 0, 0]);
    chunk(out, *b"IHDR", &head)?;
    let mut rows = ZlibEncoder::new(Vec::new(), Compression::new(9));
    let row = map.width() as usize * 4;
    let mut before = vec![0; map.width() as usize * 3];
    for pixels in map.data().chunks(row.max(1)) {
        let plain: Vec<u8> =
            pixels.chunks(4).flat_map(|pixel| pixel.iter().take(3).copied()).collect();
        // The difference to the row above (filter 2) is mostly zero.
        rows.write_all(&[2])?;
        let difference: Vec<u8> =
            plain.iter().zip(&before).map(|(now, above)| now.wrapping_sub(*above)).collect();
        rows.write_all(&difference)?;
        before = plain;
    }
    chunk(out, *b"IDAT", &rows.finish()?)?;
    chunk(out, *b"IEND", &[])
}

fn chunk(out: &mut dyn Write, name: [u8; 4], bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len())
        .map_err(|_| io::Error::other("the picture is too big; choose a smaller --size"))?;
    let mut sum = Crc::new();
    sum.update(&name);
    sum.update(bytes);
    out.write_all(&length.to_be_bytes())?;
    out.write_all(&name)?;
    out.write_all(bytes)?;
    out.write_all(&sum.sum().to_be_bytes())
}
