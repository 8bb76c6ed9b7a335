//! The page's text.

use std::fmt::Write as _;

use data_encoding::BASE64;
use sha2::{Digest, Sha256};

use super::{Content, names};
use crate::plot::table::Table;
use crate::plot::text::{escape, percent_encode};
use crate::plot::{Figure, Place, style};
use crate::result::{Measurement, Run};

const SCRIPT: &str = include_str!("page.js");
const RULES: &str = include_str!("page.css");

/// Entries of a set-up, notes and quotations that are shown of one measurement.
const ENTRIES_SHOWN_MAX: usize = 40;

/// What a browser calls a text that it may use.
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
    let title = match content.sources {
        [one] => one.run.title.clone(),
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
    out.push_str("<div class=\"figures\">\n");
    for figure in &content.figures {
        out += &figure_(figure);
    }
    out.push_str("</div>\n");
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

fn list(class: &str, lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let items: String = lines.iter().map(|line| format!("<li>{}</li>", escape(line))).collect();
    format!("<ul class=\"{class}\">{items}</ul>\n")
}

/// On top: what does not compare.
fn differences(content: &Content<'_>) -> String {
    if content.differences.is_empty() {
        return String::new();
    }
    let lines = list("", &content.differences);
    format!(
        "<section class=\"box\" id=\"differences\"><h2>These runs differ in more than what they \
         measured</h2>{lines}</section>\n"
    )
}

fn contents(content: &Content<'_>) -> String {
    let link = |id: &str, words: &str| format!("<li><a href=\"#{id}\">{}</a></li>", escape(words));
    let plots: String =
        content.figures.iter().map(|figure| link(&figure.id, &figure.title)).collect();
    let runs = link("runs", "Runs and machines");
    format!("<nav aria-label=\"Plots\"><ul>{plots}{runs}</ul></nav>\n")
}

fn figure_(figure: &Figure) -> String {
    let (id, title) = (&figure.id, escape(&figure.title));
    let mut out = format!("<figure id=\"{id}\"><h2>{title}</h2>\n");
    out += &list("cautions", &figure.cautions);
    let hint = "left and right go from point to point, up and down from series to series";
    let _ = writeln!(
        out,
        "<div class=\"area\" tabindex=\"0\" role=\"application\" aria-label=\"{title}: {hint}\">\
         {}</div>",
        figure.svg(Place::Page)
    );
    out.push_str("<ul class=\"legend\" aria-label=\"Series: press to hide or show\">");
    for (number, key) in figure.keys().iter().enumerate() {
        let _ = write!(
            out,
            "<li><button type=\"button\" class=\"key\" aria-pressed=\"true\" data-k=\"{number}\">\
             <svg class=\"plot\" viewBox=\"0 0 30 14\" aria-hidden=\"true\">{}</svg>\
             {}</button></li>",
            key.sample(figure.has_bars(), 0.0, 0.0),
            escape(key.name)
        );
    }
    out.push_str("</ul>\n");
    out += &list("remarks", &figure.remarks);
    out += &table(figure);
    out.push_str("</figure>\n");
    out
}

/// The numbers, and where they can be taken from.
fn table(figure: &Figure) -> String {
    let table = figure.table();
    let unit = figure.y.unit.symbol();
    let csv = percent_encode(&table.csv());
    let has_bars = figure.has_bars();
    let (words, x_unit) = if has_bars {
        (String::new(), "")
    } else {
        (escape(&figure.x.words), figure.x.unit.symbol())
    };
    let mut out = format!(
        "<details><summary>Table of {} numbers</summary>\
         <p><a download=\"{id}.csv\" href=\"data:text/csv;charset=utf-8,{csv}\">{id}.csv</a> · \
         <a href=\"{id}.svg\">{id}.svg</a> · {what}</p>\
         <div class=\"table\" tabindex=\"0\" role=\"region\" aria-label=\"{title}\">\
         <table data-words=\"{words}\" data-x=\"{x_unit}\" data-y=\"{unit}\">",
        figure.title.to_lowercase().split(' ').next().map(escape).unwrap_or_default(),
        id = figure.id,
        title = escape(&figure.title),
        what = escape(&crate::plot::table::with_unit(&figure.y.words, figure.y.unit)),
    );
    out += &cells(&table);
    out.push_str("</table></div></details>\n");
    out
}

fn cells(table: &Table) -> String {
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
            let text = cell.as_ref().map(|cell| escape(&cell.text())).unwrap_or_default();
            let _ = write!(out, "<td>{text}</td>");
        }
        out.push_str("</tr>");
    }
    out + "</tbody>"
}

/// Where, when and by what.
fn runs_(content: &Content<'_>) -> String {
    let mut out = String::from("<section id=\"runs\"><h2>Runs and machines</h2>\n");
    for source in content.sources {
        let lines = run_lines(&source.run);
        let _ = write!(out, "<h3>{}</h3>{}", escape(&source.run.title), list("", &lines));
        let shown: Vec<String> = source.measurements.iter().map(measurement_line).collect();
        let count = counted(shown.len(), "measurement");
        let _ = writeln!(out, "<details><summary>{count}</summary>{}</details>", list("", &shown));
    }
    out + "</section>\n"
}

fn run_lines(run: &Run) -> Vec<String> {
    let mut lines = vec![format!("begun {}", run.begun)];
    if !run.command.is_empty() {
        lines.push(format!("by: {}", run.command.join(" ")));
    }
    match &run.machine {
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

fn measurement_line(measurement: &Measurement) -> String {
    let Measurement { title, benchmark, origin, source, setup, notes, .. } = measurement;
    let mut line = format!("{title} ({benchmark}), {}", names::origin(*origin));
    if let Some(source) = source {
        line += &format!(", from {source}");
    }
    for (key, value) in setup.iter().take(ENTRIES_SHOWN_MAX) {
        line += &format!("; {key}: {value}");
    }
    let trips = &measurement.cache_line_round_trips_ns;
    if !trips.is_empty() {
        let trips: Vec<String> = trips.iter().map(u64::to_string).collect();
        line += &format!("; a cache line's round trips around it: {} ns", trips.join(", "));
    }
    for note in notes.iter().take(ENTRIES_SHOWN_MAX) {
        line += &format!("; {note}");
    }
    line
}

/// What could not be measured, and why: nothing stands in for it.
fn empty(content: &Content<'_>) -> String {
    let mut lines = Vec::new();
    for source in content.sources {
        for measurement in &source.measurements {
            for empty in &measurement.empty {
                let (title, what, why) = (&measurement.title, &empty.what, &empty.why);
                let line = format!("{title}: {what}: {why}");
                if !lines.contains(&line) {
                    lines.push(line);
                }
            }
        }
    }
    if lines.is_empty() {
        return String::new();
    }
    let lines = list("", &lines);
    format!("<section id=\"empty\"><h2>What could not be measured</h2>{lines}</section>\n")
}

/// What others said, with their words.
fn published(content: &Content<'_>) -> String {
    if content.published.is_empty() && content.published_unused == 0 {
        return String::new();
    }
    let mut out = String::from("<section id=\"published\"><h2>What others published</h2>\n");
    for measurement in &content.published {
        let source = measurement.source.as_deref().unwrap_or("source unknown");
        let (title, source) = (escape(&measurement.title), escape(source));
        let _ = write!(out, "<h3>{title}</h3><p>{source}</p>");
        for words in measurement.quotations.iter().take(ENTRIES_SHOWN_MAX) {
            let _ = write!(out, "<blockquote>{}</blockquote>", escape(words));
        }
        let misprint = |words: &String| format!("A misprint, as far as can be told: {words}");
        let mut lines: Vec<String> = measurement.misprints.iter().map(misprint).collect();
        lines.extend(measurement.notes.iter().take(ENTRIES_SHOWN_MAX).cloned());
        out += &list("", &lines);
    }
    if content.published_unused > 0 {
        let unused = counted(content.published_unused, "published measurement");
        let _ = writeln!(
            out,
            "<p>{unused} of other quantities than those above have nothing here to stand beside, \
             and are not shown.</p>"
        );
    }
    out + "</section>\n"
}
