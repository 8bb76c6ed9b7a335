//! Colours, markers and dashes, for light and dark paper.
//!
//! The eight colours begin from Okabe and Ito's. They were moved until each two of them lie as far
//! apart as possible for readers with one kind of cone missing (by Machado's, Oliveira's and
//! Fernandes' matrices of 2009, in CIE Lab), while each keeps a contrast of 3:1 against its paper.
//! The tests below check both. Colour is never alone: markers differ as well.

use std::fmt::Write as _;

use super::number::place;

/// The number of colours. The next series begins again with another marker and another dash.
pub const COLOURS: usize = 8;
/// The number of markers. It has no divisor in common with [`COLOURS`], so pairs repeat late.
pub const MARKERS: usize = 7;
/// The number of dashes for measured series. Published series have a dash of their own.
pub const DASHES: usize = 3;

/// A colour of the style sheet.
#[derive(Clone, Copy)]
struct StyleToken {
    name: &'static str,
    /// The colour on light paper.
    light: &'static str,
    /// The colour on dark paper.
    dark: &'static str,
}

const fn token(name: &'static str, light: &'static str, dark: &'static str) -> StyleToken {
    StyleToken { name, light, dark }
}

/// Colours that belong to no series.
const TOKENS: [StyleToken; 11] = [
    token("paper", "#ffffff", "#14171c"),
    token("panel", "#f5f6f8", "#1d2128"),
    token("text", "#1a1d21", "#e8eaed"),
    token("quiet", "#565d66", "#a9b1bb"),
    token("axis", "#6b727b", "#8b939d"),
    token("grid", "#d9dce1", "#363c46"),
    token("faint", "#eef0f2", "#242932"),
    token("link", "#004fa6", "#8fbcff"),
    token("warn", "#8a4b00", "#ffc266"),
    token("gain", "#4a97d9", "#2f76b8"),
    token("loss", "#e08a1e", "#b35c12"),
];

const SERIES: [StyleToken; COLOURS] = [
    token("c0", "#004fa6", "#366b9f"),
    token("c1", "#d77104", "#f8d10e"),
    token("c2", "#6d9861", "#7fe698"),
    token("c3", "#461950", "#9981ff"),
    token("c4", "#3397d1", "#b3c7ff"),
    token("c5", "#9c3100", "#df6b28"),
    token("c6", "#94567a", "#ae7b84"),
    token("c7", "#26311e", "#ffffff"),
];

/// The rules of a plot, with `var(--name)` for colours.
const RULES: &str = include_str!("plot.css");

fn tokens() -> impl Iterator<Item = StyleToken> {
    TOKENS.into_iter().chain(SERIES)
}

/// The look of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesLook {
    /// The colour, below [`COLOURS`].
    pub colour: usize,
    /// The marker, below [`MARKERS`].
    pub marker: usize,
    /// The dash, below [`DASHES`].
    pub dash: usize,
}

impl SeriesLook {
    /// The look of the series with this number. The first 56 looks differ in colour or marker.
    pub fn nth(number: usize) -> Self {
        let dash = number / COLOURS % DASHES;
        Self { colour: number % COLOURS, marker: number % MARKERS, dash }
    }

    /// The classes of its element.
    pub fn classes(self) -> String {
        let Self { colour, dash, .. } = self;
        if dash == 0 { format!("k c{colour}") } else { format!("k c{colour} dash{dash}") }
    }

    /// The marker's outline around a point, as commands of a path.
    pub fn outline(self, x: f64, y: f64) -> String {
        let ((dx, dy), shape) = match self.marker {
            0 => ((-3.5, 0.0), "a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0z"),
            1 => ((-3.3, -3.3), "h6.6v6.6h-6.6z"),
            2 => ((0.0, -4.6), "l4.2 7.4h-8.4z"),
            3 => ((0.0, -4.8), "l4.4 4.8l-4.4 4.8l-4.4-4.8z"),
            4 => ((0.0, 4.6), "l4.2-7.4h-8.4z"),
            5 => ((-4.6, -1.4), "h3.2v-3.2h2.8v3.2h3.2v2.8h-3.2v3.2h-2.8v-3.2h-3.2z"),
            _ => ((-2.2, -4.4), "h4.4l2.2 4.4l-2.2 4.4h-4.4l-2.2-4.4z"),
        };
        format!("M{} {}{shape}", place(x + dx), place(y + dy))
    }
}

/// The style sheet of plots, whose colours are variables that [`variables`] sets.
pub fn sheet() -> String {
    let mut sheet = RULES.to_owned();
    for StyleToken { name, .. } in SERIES {
        let _ = writeln!(
            sheet,
            "svg.plot .{name} .line, svg.plot .{name} .spread {{ stroke: var(--{name}); }}\n\
             svg.plot .{name} .dots {{ fill: var(--{name}); stroke: var(--{name}); }}\n\
             svg.plot .{name} .box {{ fill: var(--{name}); }}\n\
             svg.plot .published.{name} .box {{ fill: var(--paper); stroke: var(--{name}); }}"
        );
    }
    sheet.push_str("svg.plot .published .dots { fill: var(--paper); }\n");
    sheet
}

/// The variables: light colours, dark colours for a dark system, and both for the page's switch.
pub fn variables() -> String {
    let list = |dark: bool| {
        tokens().fold(String::new(), |mut list, token| {
            let colour = if dark { token.dark } else { token.light };
            let _ = write!(list, "--{}:{colour};", token.name);
            list
        })
    };
    let (light, dark) = (list(false), list(true));
    format!(
        ":root{{color-scheme:light;{light}}}\n\
         @media screen{{\n\
         @media (prefers-color-scheme:dark){{:root{{color-scheme:dark;{dark}}}}}\n\
         :root[data-theme=light]{{color-scheme:light;{light}}}\n\
         :root[data-theme=dark]{{color-scheme:dark;{dark}}}\n\
         }}\n"
    )
}

/// The style sheet of a plot in a file of its own. It has no variables, since many programs that
/// draw SVG do not know them.
pub fn alone() -> String {
    let filled = |dark: bool| {
        tokens().fold(sheet(), |sheet, token| {
            let colour = if dark { token.dark } else { token.light };
            sheet.replace(&format!("var(--{})", token.name), colour)
        })
    };
    let (light, dark) = (filled(false), filled(true));
    format!("{light}@media (prefers-color-scheme:dark){{\n{dark}}}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The contrasts that WCAG 2.2 demands: of text, and of other visible parts.
    const CONTRAST_TEXT: f64 = 4.5;
    const CONTRAST_LINES: f64 = 3.0;
    /// A distance in CIE Lab, about ten times the least visible one. Shapes differ besides.
    const APART: f64 = 20.0;

    type Rgb = [f64; 3];

    /// Rows of the colours that each eye sees for red, green and blue: full colour vision,
    /// protanopia, deuteranopia, tritanopia.
    const EYES: [[Rgb; 3]; 4] = [
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ],
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ],
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ],
    ];

    fn linear(hex: &str) -> Rgb {
        [1, 3, 5].map(|at| {
            let part = f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap()) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        })
    }

    fn luminance([red, green, blue]: Rgb) -> f64 {
        0.2126 * red + 0.7152 * green + 0.0722 * blue
    }

    fn contrast(one: &str, other: &str) -> f64 {
        let (one, other) = (luminance(linear(one)), luminance(linear(other)));
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    fn seen(colour: Rgb, eye: [Rgb; 3]) -> Rgb {
        eye.map(|row| (0..3).map(|at| row[at] * colour[at]).sum::<f64>().clamp(0.0, 1.0))
    }

    fn lab([red, green, blue]: Rgb) -> Rgb {
        let x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505;
        let z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089;
        let f = |t: f64| if t > 0.008856 { t.cbrt() } else { 7.787 * t + 16.0 / 116.0 };
        let (x, y, z) = (f(x), f(luminance([red, green, blue])), f(z));
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    fn token(name: &str) -> (&'static str, &'static str) {
        let StyleToken { light, dark, .. } = tokens().find(|it| it.name == name).unwrap();
        (light, dark)
    }

    /// The numbers in a heat map's boxes are read on every colour, the strongest included.
    #[test]
    fn numbers_in_boxes_are_read() {
        let of = |name: &str| TOKENS.into_iter().find(|token| token.name == name).unwrap();
        let (paper, text) = (of("paper"), of("text"));
        let opacity = |level: usize| -> f64 {
            let begin = format!(".l{level} {{ fill-opacity: ");
            RULES.split(&begin).nth(1).unwrap().split(';').next().unwrap().parse().unwrap()
        };
        let part =
            |hex: &str, at: usize| f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap());
        for (fill, is_dark) in ["gain", "loss"].into_iter().flat_map(|it| [(it, false), (it, true)])
        {
            let colour = |token: StyleToken| if is_dark { token.dark } else { token.light };
            for level in 1..=5 {
                let share = opacity(level);
                let mixed = [1, 3, 5].map(|at| {
                    let fill = part(colour(of(fill)), at) * share;
                    (fill + part(colour(paper), at) * (1.0 - share)).round() as u8
                });
                let [red, green, blue] = mixed;
                let found = contrast(colour(text), &format!("#{red:02x}{green:02x}{blue:02x}"));
                assert!(found >= CONTRAST_TEXT, "{fill} {level}, dark: {is_dark}: {found}");
            }
        }
    }

    #[test]
    fn colours_contrast_with_the_paper() {
        for paper in ["paper", "panel"] {
            for (name, least) in [
                ("text", CONTRAST_TEXT),
                ("quiet", CONTRAST_TEXT),
                ("link", CONTRAST_TEXT),
                ("warn", CONTRAST_TEXT),
                ("axis", CONTRAST_LINES),
            ] {
                let (light, dark) = token(name);
                let (paper_light, paper_dark) = token(paper);
                assert!(contrast(light, paper_light) >= least, "{name} on light {paper}");
                assert!(contrast(dark, paper_dark) >= least, "{name} on dark {paper}");
            }
        }
        for StyleToken { name, light, dark } in SERIES {
            let on = [contrast(light, token("paper").0), contrast(dark, token("paper").1)];
            assert!(on.iter().all(|found| *found >= CONTRAST_LINES), "{name}: {on:?}");
        }
    }

    #[test]
    fn series_differ_for_every_kind_of_eyes() {
        for eye in EYES {
            for is_dark in [false, true] {
                let colours = SERIES.map(|StyleToken { light, dark, .. }| {
                    lab(seen(linear([light, dark][usize::from(is_dark)]), eye))
                });
                for one in 0..COLOURS {
                    for other in 0..one {
                        let pairs = colours[one].iter().zip(colours[other]);
                        let apart = pairs.map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
                        assert!(apart >= APART, "c{one}, c{other}: {apart:.1} (dark: {is_dark})");
                    }
                }
            }
        }
    }

    #[test]
    fn looks_repeat_late() {
        let mut seen = Vec::new();
        for number in 0..COLOURS * MARKERS {
            let look = SeriesLook::nth(number);
            assert!(!seen.contains(&(look.colour, look.marker)), "{number}");
            seen.push((look.colour, look.marker));
        }
    }

    #[test]
    fn every_variable_has_a_value() {
        assert!(!alone().contains("var("), "a variable without a value");
        let used = sheet().matches("var(--").count();
        assert!(used > 20, "{used}");
    }
}
