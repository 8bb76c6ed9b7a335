//! The page's text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use data_encoding::BASE64;
use results::{Empty, Measurement, Run};
use sha2::{Digest, Sha256};

use super::content::Content;
use super::{is_plan, names, said};
use crate::plot::number::{exact, rounded};
use crate::plot::table::{PlotCell, PlotTable, with_unit};
use crate::plot::text::{escape, shorten};
use crate::plot::{Figure, PicturePlace, style};

const SCRIPT: &str = include_str!("page.js");
const RULES: &str = include_str!("page.css");

/// Entries of a set-up, notes and quotations that are shown of one measurement.
const ENTRIES_SHOWN_MAX: usize = 40;
/// Measurements of one run that are listed, and empty cells of all runs.
const MEASUREMENTS_SHOWN_MAX: usize = 200;
const EMPTY_SHOWN_MAX: usize = 300;
/// Characters of a note or a reason. The results' files have all of it.
const WORDS_SHOWN_MAX: usize = 600;
/// The digits of a rounded number, and the bound below which a number is shown as about 0.
const DIGITS: usize = 4;
const NOTHING: f64 = 5e-5;
/// Figures of one text in a table.
const FIGURES_OF_MAX: usize = 100;

/// A text's name in a policy for browsers, which permits the text by its hash.
fn hash(text: &str) -> String {
    format!("'sha256-{}'", BASE64.encode(&Sha256::digest(text.as_bytes())))
}

pub(super) fn page(content: &Content<'_>) -> String {
    let sheet = style::variables() + &style::sheet() + RULES;
    let policy = format!(
        "default-src 'none'; style-src {}; script-src {}; base-uri 'none'; form-action 'none'",
        hash(&sheet),
        hash(SCRIPT)
    );
    let runs = content.sources.len();
    let title = match (content.sources, content.title) {
        ([one], _) => one.run.title.clone(),
        (_, Some(title)) => format!("{runs} runs: {title}"),
        _ => format!("{runs} runs"),
    };
    let title = escape(&title);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"generator\" content=\"vrio report\">\n<title>{title} · vrio</title>\n\
         <style>{sheet}</style>\n</head>\n<body>\n\
         <header><h1>{title}</h1><p>{}</p>\
         <button id=\"theme\" type=\"button\" hidden></button></header>\n<main>\n",
        summary(content)
    );
    out += &differences(content);
    out += &contents(content);
    for figures in content.figures.chunk_by(|one, next| one.subject == next.subject) {
        let subject = escape(&figures[0].subject);
        let shared = shared(figures);
        let cautions = list("cautions", &shared.iter().copied().cloned().collect::<Vec<_>>());
        let _ = writeln!(
            out,
            "<h2 class=\"subject\">{subject}</h2>\n{cautions}<div class=\"figures\">"
        );
        figures.iter().for_each(|figure| out += &figure_(figure, &shared));
        out.push_str("</div>\n");
    }
    out += &runs_(content);
    out += &empty(content);
    out += &published(content);
    out.push_str("</main>\n<div id=\"tip\" role=\"status\" hidden><b></b> <span></span></div>\n");
    let _ = writeln!(out, "<script>{SCRIPT}</script>\n</body>\n</html>");
    out
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("{count} {what}") } else { format!("{count} {what}s") }
}

fn summary(content: &Content<'_>) -> String {
    let begun = content.sources.iter().map(|source| source.run.begun.as_str());
    let (first, last) = (begun.clone().min().unwrap_or(""), begun.max().unwrap_or(""));
    let when = if first == last { first.to_owned() } else { format!("{first} to {last}") };
    let plots = counted(content.figures.len(), "plot");
    let runs = counted(content.sources.len(), "run");
    escape(&format!("vrio report: {plots} of {runs}, {when}"))
}

/// At most so many of the lines, and the number of those that are left out.
fn bounded(mut lines: Vec<String>, max: usize, what: &str) -> Vec<String> {
    let more = lines.len().saturating_sub(max);
    lines.truncate(max);
    lines.extend((more > 0).then(|| format!("and {more} more {what}, in the results' files")));
    lines
}

fn list(class: &str, lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let items: String = lines.iter().map(|line| format!("<li>{}</li>", escape(line))).collect();
    format!("<ul class=\"{class}\">{items}</ul>\n")
}

/// On top: differences that spoil comparisons.
fn differences(content: &Content<'_>) -> String {
    if content.differences.is_empty() {
        return String::new();
    }
    let lines = list("", &content.differences);
    let head = match content.sources {
        [_] => "Cautions",
        _ => "These runs differ in more than what they measured",
    };
    format!("<section class=\"box\" id=\"differences\"><h2>{head}</h2>{lines}</section>\n")
}

fn contents(content: &Content<'_>) -> String {
    let link = |id: &str, words: &str| format!("<li><a href=\"#{id}\">{}</a></li>", escape(words));
    let of_subject = |figures: &[Figure]| {
        let subject = &figures[0].subject;
        let end = format!(": {subject}");
        let short = |figure: &Figure| {
            let words = figure.title.replace(&end, "");
            link(&figure.id, words.trim_start_matches(", "))
        };
        let plots: String = figures.iter().map(short).collect();
        format!("<li><b>{}</b> <ul>{plots}</ul></li>\n", escape(subject))
    };
    let subjects = content.figures.chunk_by(|one, next| one.subject == next.subject);
    let plots: String = subjects.map(of_subject).collect();
    let runs = link("runs", "Runs and machines");
    let left = match content.left {
        0 => String::new(),
        left => format!("<p>{left} more plots have no place: show fewer runs at a time.</p>"),
    };
    format!("<nav aria-label=\"Plots\"><ul>{plots}{runs}</ul>{left}</nav>\n")
}

/// The cautions that all of several plots share: the page shows them once.
fn shared(figures: &[Figure]) -> BTreeSet<&String> {
    let [first, rest @ ..] = figures else { return BTreeSet::new() };
    let all = first.cautions.iter();
    let is_shared = |words: &&String| rest.iter().all(|figure| figure.cautions.contains(words));
    if rest.is_empty() { BTreeSet::new() } else { all.filter(is_shared).collect() }
}

fn figure_(figure: &Figure, shared: &BTreeSet<&String>) -> String {
    let (id, title) = (&figure.id, escape(&figure.title));
    let class = if figure.is_drawn() { "" } else { " class=\"listed\"" };
    let mut out = format!("<figure id=\"{id}\"{class}><h3>{title}</h3>\n");
    let own = figure.cautions.iter().filter(|words| !shared.contains(words));
    out += &list("cautions", &own.cloned().collect::<Vec<_>>());
    if figure.is_drawn() {
        out += &picture(figure, &title);
    }
    out += &list("remarks", &figure.remarks);
    out += &table(figure);
    out.push_str("</figure>\n");
    out
}

/// The picture and its legend.
fn picture(figure: &Figure, title: &str) -> String {
    let hint = "left and right go from point to point, up and down from series to series";
    let svg = figure.svg(PicturePlace::Page);
    let mut out = format!(
        "<div class=\"area\" tabindex=\"0\" role=\"application\" aria-label=\"{title}: {hint}\">\
         {svg}</div>\n"
    );
    let keys = figure.legend();
    if keys.is_empty() {
        return out;
    }
    out.push_str("<ul class=\"legend\" aria-label=\"Series: press to hide or show\">");
    for key in &keys {
        let _ = write!(
            out,
            "<li><button class=\"key\" aria-pressed=\"true\">\
             <svg class=\"plot\">{}</svg>{}</button>",
            key.sample(figure.has_bars(), 0.0, 0.0),
            escape(key.name)
        );
    }
    out + "</ul>\n"
}

/// The numbers of a plot, with links to its files. The page's script makes the CSV of a table when
/// the table is opened.
fn table(figure: &Figure) -> String {
    let table = figure.table();
    let unit = figure.y.unit.symbol();
    let has_bars = figure.has_bars();
    let (words, x_unit) = if has_bars {
        (String::new(), "")
    } else {
        (escape(&figure.x.words), figure.x.unit.symbol())
    };
    let id = &figure.id;
    let (is_open, picture) = match figure.is_drawn() {
        true => ("", format!("<a href=\"{id}.svg\">{id}.svg</a> · ")),
        false => (" open", String::new()),
    };
    let mut what = with_unit(&figure.y.words, figure.y.unit);
    if !figure.of_table.is_empty() {
        let _ = write!(what, "; {}", figure.of_table);
    }
    let mut out = format!(
        "<details{is_open}><summary>Its numbers</summary>\
         <p><a download=\"{id}.csv\" hidden>{id}.csv</a> {picture}{what}</p>\
         <div class=\"table\" tabindex=\"0\" role=\"region\" aria-label=\"{title}\">\
         <table data-words=\"{words}\" data-x=\"{x_unit}\" data-y=\"{unit}\">",
        title = escape(&figure.title),
        what = escape(&what),
    );
    out += &cells(&table, !figure.is_drawn());
    out.push_str("</table></div></details>\n");
    out
}

/// The head and the rows of a table. A plot without a picture shows rounded numbers; its CSV has
/// the exact numbers, which stand in attributes.
fn cells(table: &PlotTable, is_rounded: bool) -> String {
    let mut out = format!("<thead><tr><th scope=\"col\">{}</th>", escape(&table.corner));
    for column in &table.columns {
        let spread = match column.spread.words() {
            "" => String::new(),
            words => format!(" data-spread=\"{}\"", escape(words)),
        };
        let _ = write!(out, "<th scope=\"col\"{spread}>{}</th>", escape(&column.name));
    }
    out.push_str("</tr></thead><tbody>");
    for row in &table.rows {
        let _ = write!(out, "<tr><th scope=\"row\">{}</th>", escape(&row.head));
        for cell in &row.cells {
            let exact = cell.as_ref().map(PlotCell::text).unwrap_or_default();
            let short = |cell: &PlotCell| match cell.number {
                number if number != 0.0 && number.abs() < NOTHING => "≈ 0".to_owned(),
                number => rounded(number, DIGITS),
            };
            let shown = cell.as_ref().filter(|_| is_rounded).map(short);
            // HTML closes these elements by itself, and a page has tens of thousands of them.
            let _ = match shown {
                Some(shown) if shown != exact => {
                    write!(out, "<td data-exact=\"{}\">{}", escape(&exact), escape(&shown))
                }
                _ => write!(out, "<td>{}", escape(&exact)),
            };
        }
    }
    out + "</tbody>"
}

/// The runs of the page: their place, time and command.
fn runs_(content: &Content<'_>) -> String {
    let (mut out, mut told) = (String::new(), BTreeMap::new());
    out.push_str("<section id=\"runs\"><h2>Runs and machines</h2>\n");
    for source in content.sources {
        let lines = run_lines(&source.run, is_plan(source));
        let _ = write!(out, "<h3>{}</h3>{}", escape(&source.run.title), list("", &lines));
        let count = counted(source.measurements.len(), "measurement");
        let shown = source.measurements.iter().take(MEASUREMENTS_SHOWN_MAX + 1);
        let line = |it| measurement_line(it, &source.run, &mut told);
        let mut shown: Vec<String> = shown.map(line).collect();
        // One line more than there is room for, so that the rest is known to exist.
        let more = source.measurements.len().saturating_sub(MEASUREMENTS_SHOWN_MAX);
        if more > 0 {
            shown.truncate(MEASUREMENTS_SHOWN_MAX);
            shown.push(format!("and {more} more measurements, in the results' files"));
        }
        let _ = writeln!(out, "<details><summary>{count}</summary>{}</details>", list("", &shown));
    }
    out + "</section>\n"
}

fn run_lines(run: &Run, is_plan: bool) -> Vec<String> {
    let mut lines = match is_plan {
        true => vec!["a plan: it is computed, and the same on each machine".to_owned()],
        false => vec![format!("begun {}", run.begun)],
    };
    if !run.command.is_empty() {
        lines.push(format!("by: {}", run.command.join(" ")));
    }
    match &run.machine {
        None if is_plan => {}
        None => lines.push("nothing is known of its machine".to_owned()),
        Some(machine) => {
            let cores = machine.cores;
            let mut words =
                format!("{}, cores: {cores}, Linux {}", machine.processor, machine.kernel);
            if let Some(time) = machine.cache_line_round_trip_ns {
                words += &format!(", a cache line's round trip of {time} ns");
            }
            let (version, commit) = (&machine.version, &machine.commit);
            if let Some(version) = version {
                words += &format!(", vrio {version}");
            }
            if let Some(commit) = commit {
                words += &format!(" ({commit})");
            }
            lines.push(words);
        }
    }
    if !run.tools.is_empty() {
        let tools: Vec<String> =
            run.tools.iter().map(|(name, version)| format!("{name} {version}")).collect();
        lines.push(tools.join(", "));
    }
    lines.extend(run.notes.iter().take(ENTRIES_SHOWN_MAX).cloned());
    lines
}

/// The set-up of a measurement.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct MeasurementSetup<'a> {
    title: &'a str,
    benchmark: &'a str,
    entries: &'a BTreeMap<String, String>,
}

/// A measurement in words. If another run has the same set-up and title, the line only names that
/// run: ten runs of one command have ten times the same set-up.
fn measurement_line<'a>(
    measurement: &'a Measurement,
    run: &'a Run,
    told: &mut BTreeMap<MeasurementSetup<'a>, &'a str>,
) -> String {
    let Measurement { title, benchmark, origin, source, setup, notes, .. } = measurement;
    let mut line = format!("{title} ({benchmark}), {}", names::origin(*origin));
    if let Some(source) = source {
        line += &format!(", from {source}");
    }
    let key = MeasurementSetup { title, benchmark, entries: setup };
    let known = *told.entry(key).or_insert(&run.title);
    if known != run.title && !setup.is_empty() {
        line += &format!("; set up as in “{known}”");
    } else {
        for (key, value) in setup.iter().take(ENTRIES_SHOWN_MAX) {
            line += &format!("; {key}: {value}");
        }
    }
    let trips = &measurement.cache_line_round_trips_ns;
    if !trips.is_empty() {
        let trips: Vec<String> = trips.iter().map(u64::to_string).collect();
        line += &format!("; a cache line's round trips around it: {} ns", trips.join(", "));
    }
    for note in notes.iter().take(ENTRIES_SHOWN_MAX) {
        line += &format!("; {}", shorten(note, WORDS_SHOWN_MAX));
    }
    for (all, what) in [(setup.len(), "entries of its set-up"), (notes.len(), "notes")] {
        if all > ENTRIES_SHOWN_MAX {
            line += &format!("; {} more {what}", all - ENTRIES_SHOWN_MAX);
        }
    }
    line
}

/// The figures that could not be measured, and why. No other figure stands in for them.
fn empty(content: &Content<'_>) -> String {
    let mut known = BTreeSet::new();
    let measurements = content.sources.iter().flat_map(|source| &source.measurements);
    let all = measurements.flat_map(|it| it.empty.iter().map(move |empty| (&it.title, empty)));
    let all = all.filter(|(title, empty)| known.insert((*title, &empty.what, &empty.why)));
    let mut reasons: BTreeMap<(&String, &String), Vec<&str>> = BTreeMap::new();
    for (title, Empty { what, why }) in all {
        reasons.entry((title, why)).or_default().push(what);
    }
    let line = |((title, why), what): (&(&String, &String), &Vec<&str>)| {
        shorten(&format!("{title}: {}: {why}", said::few(what)), WORDS_SHOWN_MAX)
    };
    let shown = reasons.iter().map(line).collect();
    let lines = bounded(shown, EMPTY_SHOWN_MAX, "reasons");
    if lines.is_empty() {
        return String::new();
    }
    let lines = list("", &lines);
    format!(
        "<section id=\"empty\"><h2>What could not be measured or planned</h2>{lines}</section>\n"
    )
}

/// Published measurements with their quotations: first those that are in the plots, then all
/// others.
fn published(content: &Content<'_>) -> String {
    let mut out = String::new();
    if !content.published.is_empty() {
        out.push_str("<section id=\"published\"><h2>What others published</h2>\n");
        content.published.iter().for_each(|measurement| out += &quoted(measurement));
        out.push_str("</section>\n");
    }
    if !content.published_unused.is_empty() {
        let unused = counted(content.published_unused.len(), "published measurement");
        let _ = write!(
            out,
            "<section id=\"beside\"><h2>Published, with nothing here to stand beside</h2>\n\
             <details><summary>{unused} of other quantities than those above</summary>"
        );
        for measurement in &content.published_unused {
            out += &quoted(measurement);
            out += &figures_of(measurement);
        }
        out.push_str("</details></section>\n");
    }
    out
}

/// The quotations of a published text.
fn quoted(measurement: &Measurement) -> String {
    let source = measurement.source.as_deref().unwrap_or("source unknown");
    let (title, source) = (escape(&measurement.title), escape(source));
    let mut out = format!("<h3>{title}</h3><p>{source}</p>");
    for words in measurement.quotations.iter().take(ENTRIES_SHOWN_MAX) {
        let _ = write!(out, "<blockquote>{}</blockquote>", escape(words));
    }
    let misprint = |words: &String| format!("A misprint, as far as can be told: {words}");
    let mut lines: Vec<String> = measurement.misprints.iter().map(misprint).collect();
    lines.extend(measurement.notes.iter().cloned());
    let empty = |Empty { what, why }: &Empty| format!("No figure: {what}: {why}.");
    lines.extend(measurement.empty.iter().map(empty));
    out + &list("", &bounded(lines, ENTRIES_SHOWN_MAX, "notes"))
}

/// The figures of a published text as a table: a row for each figure.
fn figures_of(measurement: &Measurement) -> String {
    let mut rows = String::new();
    let all = measurement.series.iter().flat_map(|it| it.points.iter().map(move |of| (it, of)));
    for (series, point) in all.take(FIGURES_OF_MAX) {
        let place = match (&point.label, point.x_to) {
            (Some(label), _) => label.clone(),
            (None, Some(to)) => {
                format!("{} to {} {}", exact(point.x), exact(to), series.x.unit.symbol())
            }
            (None, None) => format!("{} {}", exact(point.x), series.x.unit.symbol()),
        };
        let figure = PlotTable::text_of(point);
        let _ = write!(
            rows,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{} {}</td></tr>",
            escape(&series.name),
            escape(&place),
            escape(&figure),
            series.unit.symbol()
        );
    }
    if rows.is_empty() {
        return String::new();
    }
    format!("<table class=\"words\"><tbody>{rows}</tbody></table>\n")
}
