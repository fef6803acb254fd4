//! Charts as pixels.

use std::fmt;
use std::sync::Arc;

use resvg::{tiny_skia, usvg};

/// Why no picture was made.
#[derive(Debug)]
pub enum PictureError {
    /// The system has no fonts, and a chart without its labels is useless.
    NoFonts,
    /// The text is not SVG.
    Svg(usvg::Error),
    /// It is too large, or has no size.
    Size,
    /// The pixels cannot be written as PNG.
    Png(String),
}

impl fmt::Display for PictureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PictureError::NoFonts => {
                write!(f, "no fonts were found; install some (Debian: fonts-dejavu-core), or use SVG")
            }
            PictureError::Svg(error) => write!(f, "the chart is not SVG: {error}"),
            PictureError::Size => write!(f, "the picture is too large"),
            PictureError::Png(error) => write!(f, "the picture cannot be written: {error}"),
        }
    }
}

impl std::error::Error for PictureError {}

/// An SVG as PNG, `scale` pixels for each of its own. Reads the system's fonts.
pub fn png(svg: &str, scale: f32) -> Result<Vec<u8>, PictureError> {
    let mut fonts = usvg::fontdb::Database::new();
    fonts.load_system_fonts();
    if fonts.is_empty() {
        return Err(PictureError::NoFonts);
    }
    // What `sans-serif` means if the system does not define it.
    for family in ["DejaVu Sans", "Liberation Sans", "Noto Sans", "Arial"] {
        let query = usvg::fontdb::Query { families: &[usvg::fontdb::Family::Name(family)], ..Default::default() };
        if fonts.query(&query).is_some() {
            fonts.set_sans_serif_family(family);
            break;
        }
    }
    let options = usvg::Options { fontdb: Arc::new(fonts), ..usvg::Options::default() };
    let tree = usvg::Tree::from_str(svg, &options).map_err(PictureError::Svg)?;
    let size = tree.size().to_int_size().scale_by(scale).ok_or(PictureError::Size)?;
    let mut pixels = tiny_skia::Pixmap::new(size.width(), size.height()).ok_or(PictureError::Size)?;
    resvg::render(&tree, tiny_skia::Transform::from_scale(scale, scale), &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| PictureError::Png(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theme::Theme;
    use crate::{charts, sample};

    // Would catch a picture of the wrong size, an empty one, and one without letters or colours.
    #[test]
    fn a_chart_becomes_pixels() {
        let (_, svg) = charts(&sample::run(), Theme::Light).remove(1);
        let bytes = match png(&svg, 2.0) {
            Err(PictureError::NoFonts) => return eprintln!("skipped: no fonts"),
            other => other.unwrap(),
        };
        let picture = tiny_skia::Pixmap::decode_png(&bytes).unwrap();
        assert_eq!(picture.width(), 2 * 920);
        let count = |wanted: [u8; 3]| {
            let is = |pixel: &&tiny_skia::PremultipliedColorU8| [pixel.red(), pixel.green(), pixel.blue()] == wanted;
            picture.pixels().iter().filter(is).count()
        };
        // neap's bar, the background, and the black of the letters.
        assert!(count([0x00, 0x72, 0xb2]) > 500, "{}", count([0x00, 0x72, 0xb2]));
        assert!(count([0xff, 0xff, 0xff]) > 10_000 && count([0x1b, 0x1b, 0x1b]) > 200);
    }

    // Would catch a text that is not a chart and becomes an empty picture.
    #[test]
    fn other_texts_are_refused() {
        assert!(matches!(png("hello", 1.0), Err(PictureError::Svg(_) | PictureError::NoFonts)));
    }
}
