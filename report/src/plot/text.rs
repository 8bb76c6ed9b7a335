//! Words from results inside of SVG and HTML. Any text stays text there.

/// The characters of a name in a legend or a label; the table has the whole name.
pub const NAME_CHARS_MAX: usize = 90;

/// `text` as character data or as an attribute's value in double quotes, of HTML and of XML.
///
/// Characters that XML cannot hold are replaced, and so are characters that would turn the
/// direction of the words around them.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\r' | '\t' => out.push(' '),
            c if is_unfit(c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Control characters, characters that XML 1.0 forbids, and marks that change the order of the
/// shown text.
fn is_unfit(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{fffe}' | '\u{ffff}')
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// At most `chars_max` characters of `text`, the last of them "…" if some are missing.
pub fn shorten(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.to_owned();
    }
    let kept: String = text.chars().take(chars_max.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// `text` in lines of at most `chars_max` characters where its words allow it, and at most
/// `lines_max` lines.
pub fn wrap(text: &str, chars_max: usize, lines_max: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= chars_max => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(shorten(word, chars_max)),
        }
    }
    if lines.len() > lines_max {
        lines.truncate(lines_max);
        if let Some(last) = lines.last_mut() {
            *last = shorten(&format!("{last}…"), chars_max);
        }
    }
    lines
}

/// A word for a file's name and an anchor: small letters, digits and single hyphens.
pub fn slug(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if c.is_ascii_alphanumeric() {
            out.push(c.to_ascii_lowercase());
        } else if !out.ends_with('-') && !out.is_empty() {
            out.push('-');
        }
    }
    out.trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leaves_its_place() {
        let hostile = "</title><script>alert('x')</script>\" onload=\"y & \u{0}\u{202e}z\n";
        let safe = escape(hostile);
        assert!(!safe.contains(['<', '>', '"', '\'', '\u{0}', '\u{202e}', '\n']), "{safe}");
        assert_eq!(escape("4 KiB, µs"), "4 KiB, µs");
        assert_eq!(escape("a<b&c"), "a&lt;b&amp;c");
    }

    #[test]
    fn names_are_cut_between_characters() {
        assert_eq!(shorten("µµµµ", 3), "µµ…");
        assert_eq!(shorten("abc", 3), "abc");
        assert_eq!(wrap("one two three", 7, 9), ["one two", "three"]);
        assert_eq!(wrap("one two three", 7, 1), ["one tw…"]);
        assert_eq!(slug("Latency, by <size>!"), "latency-by-size");
    }
}
