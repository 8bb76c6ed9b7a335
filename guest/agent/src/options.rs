//! `--name value` on a command line: all that the agent needs.

use std::str::FromStr;

/// The words after the command: one plain word (the device) and named values.
#[derive(Debug)]
pub struct AgentOptions {
    device: String,
    named: Vec<(String, String)>,
}

impl AgentOptions {
    /// Takes the words apart. `known` are the names that may appear.
    ///
    /// # Errors
    /// The word that is unknown, doubled or lacks its value.
    pub fn parse(words: &[String], known: &[&str]) -> Result<Self, String> {
        let mut device = None;
        let mut named: Vec<(String, String)> = Vec::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.strip_prefix("--") {
                Some(name) => {
                    if !known.contains(&name) || named.iter().any(|(seen, _)| seen == name) {
                        return Err(format!("--{name} is unknown or given twice"));
                    }
                    let value = words.next().ok_or(format!("--{name} needs a value"))?;
                    named.push((name.to_owned(), value.clone()));
                }
                None if device.is_none() => device = Some(word.clone()),
                None => return Err(format!("'{word}' is one word too many")),
            }
        }
        let device = device.ok_or("name a device")?;
        Ok(Self { device, named })
    }

    /// The device or file to work on.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// A text that may be absent.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.named.iter().find(|(seen, _)| seen == name).map(|(_, value)| value.as_str())
    }

    /// A number, or `default` if it is not given.
    ///
    /// # Errors
    /// The value that is no such number.
    pub fn number<T: FromStr>(&self, name: &str, default: T) -> Result<T, String> {
        match self.text(name) {
            Some(text) => text.parse().map_err(|_| format!("--{name}: '{text}' is no number")),
            None => Ok(default),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<AgentOptions, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        AgentOptions::parse(&words, &["seed", "stop"])
    }

    #[test]
    fn names_values_and_the_device_are_found() {
        let options = parse("--seed 5 /dev/vda --stop /run/stop").unwrap();
        assert_eq!(options.device(), "/dev/vda");
        assert_eq!(options.number("seed", 0u64), Ok(5));
        assert_eq!(options.text("stop"), Some("/run/stop"));
        assert_eq!(parse("x").unwrap().number("seed", 7u64), Ok(7));
    }

    #[test]
    fn mistakes_are_named() {
        for (line, wanted) in [
            ("", "name a device"),
            ("a b", "'b'"),
            ("a --what 1", "--what"),
            ("a --seed", "needs a value"),
            ("a --seed 1 --seed 2", "twice"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(wanted), "{line}: {error}");
        }
        assert!(parse("a --seed x").unwrap().number("seed", 0u64).is_err());
    }
}
