//! `vrio report`: results as a page.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow, bail};
use report::import;
use report::page::{Page, PageError, PageOptions, page};
use report::published::published;
use report::store::{self, Loaded, RunStore};

use crate::failure::CommandFailure;
use crate::results::PlaceArgs;
use crate::{output, results};

pub(crate) const REPORT_EXAMPLES: &str = "Examples:
  vrio report                              the latest run of the store
  vrio report before/ after/ -o compared   two runs in the same plots
  vrio report results/ --baseline native   overheads against the series called native
  vrio report osu_latency.txt              output of OSU, fio, netperf, iperf3 or sockperf
  vrio report latest --with-published      beside published figures of other systems
  vrio plan cost rack.toml --search --json > search.json
  vrio report search.json -o plans         where pooling pays: any --json of 'vrio plan'";

/// The program that opens a file as the desktop would.
const OPENER: &str = "xdg-open";

/// The page's file.
const INDEX: &str = "index.html";
/// A line in every page that this program made, so that no other page is overwritten.
const GENERATOR: &str = "<meta name=\"generator\" content=\"vrio report\">";

#[derive(Debug, clap::Args)]
pub(crate) struct ReportArgs {
    /// Runs, directories of runs, files of results, of plans or of other programs' output, or names
    /// of runs in the store; default: the store's latest run.
    #[arg(value_name = "DIR_OR_FILE")]
    from: Vec<String>,
    #[command(flatten)]
    place: PlaceArgs,
    /// The directory for the page and its plots; it is created if it is missing.
    #[arg(short, long, value_name = "DIR", default_value = "vrio-report")]
    output: PathBuf,
    /// Show overheads against the series, measurement or run with these words in its name; default:
    /// the first with "native" in its name, or the first of all.
    #[arg(long, value_name = "WORDS")]
    baseline: Option<String>,
    /// Add published figures of other systems for the same quantities, drawn dashed and hollow.
    #[arg(long)]
    with_published: bool,
    /// The line's rate in each direction, such as 10Gbit, for bandwidths without one of their own.
    #[arg(long, value_name = "RATE", value_parser = results::line_rate)]
    line_rate: Option<f64>,
    /// Open the page in the desktop's browser.
    #[arg(long)]
    open: bool,
}

/// `vrio report`.
pub(crate) fn report(args: &ReportArgs) -> Result<(), CommandFailure> {
    let mut runs = read(&args.from, &args.place).map_err(CommandFailure::configuration)?;
    runs.iter_mut().for_each(|run| results::set_line_rate(run, args.line_rate));
    let published = if args.with_published { published() } else { Vec::new() };
    let options = PageOptions { baseline: args.baseline.clone(), published };
    let page = page(&runs, &options).map_err(|error| match error {
        PageError::Nothing => CommandFailure::running(error),
        error => CommandFailure::configuration(error),
    })?;
    write(&page, &args.output).map_err(CommandFailure::running)?;
    let path = args.output.join(INDEX);
    let path = path.canonicalize().unwrap_or(path);
    let plots = page.plots.len();
    output::print(&format!("{} ({plots} plots beside it as SVG)\n", path.display()))?;
    if args.open { open_page(&path).map_err(CommandFailure::running) } else { Ok(()) }
}

/// Has the desktop's browser show a page; it need not have ended when this returns.
pub(crate) fn open_page(page: &Path) -> anyhow::Result<()> {
    let mut command = Command::new(OPENER);
    let silent = command.arg(page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let started = silent.process_group(0).spawn();
    started.map(drop).with_context(|| {
        format!("{OPENER} (Debian: xdg-utils) did not start: open {} yourself", page.display())
    })
}

/// Everything that was named, in that order; of a directory of runs those that can be read.
fn read(from: &[String], place: &PlaceArgs) -> anyhow::Result<Vec<Loaded>> {
    if from.is_empty() {
        return Ok(vec![place.place()?.load("latest")?]);
    }
    let (mut runs, mut damaged) = (Vec::new(), 0);
    for word in from {
        let path = Path::new(word);
        let inside = if path.is_dir() { RunStore::at(path).list()? } else { Vec::new() };
        if inside.is_empty() {
            runs.push(import::open(word, || place.place())?);
        }
        let count = inside.len();
        let damaged_before = damaged;
        for listed in inside {
            match store::load(&path.join(listed.id)) {
                Ok(run) => runs.push(run),
                Err(error) => {
                    output::say(format_args!("left out: {error}"));
                    damaged += 1;
                }
            }
        }
        if count > 0 && damaged - damaged_before == count {
            bail!("{word}: none of its {count} runs can be read");
        }
    }
    Ok(runs)
}

/// Writes the page and its plots, and removes those of the page that was there before.
fn write(page: &Page, into: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(into).with_context(|| format!("making {}", into.display()))?;
    let index = into.join(INDEX);
    if let Ok(before) = fs::read_to_string(&index) {
        if !before.contains(GENERATOR) {
            let index = index.display();
            return Err(anyhow!("{index} is not a page of vrio: name another directory with -o"));
        }
        for name in plots_of(&before) {
            // A plot that is gone already is no fault.
            let _ = fs::remove_file(into.join(name));
        }
    }
    let files = page.plots.iter().map(|(name, text)| (name.as_str(), text));
    for (name, text) in files.chain([(INDEX, &page.html)]) {
        let path = into.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Names of plots that a page links to, and nothing that leads elsewhere.
fn plots_of(html: &str) -> impl Iterator<Item = &str> {
    let links = html.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let is_plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c));
    links.filter(move |link| link.ends_with(".svg") && is_plain(link))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> Page {
        let html = format!("{GENERATOR}<a href=\"{name}\">x</a><a href=\"../keep.svg\">y</a>");
        Page { html, plots: vec![(name.to_owned(), "<svg/>".to_owned())] }
    }

    #[test]
    fn a_page_replaces_its_own_kind_alone() {
        let home = tempfile::tempdir().unwrap();
        let into = home.path().join("new/page");
        fs::write(home.path().join("keep.svg"), "").unwrap();
        write(&of("one.svg"), &into).unwrap();
        write(&of("two.svg"), &into).unwrap();
        assert!(!into.join("one.svg").exists() && into.join("two.svg").exists());
        fs::write(into.join(INDEX), "<h1>my site</h1>").unwrap();
        let said = write(&of("three.svg"), &into).unwrap_err().to_string();
        assert!(said.contains("-o"), "{said}");
        assert!(!into.join("three.svg").exists());
    }
}
