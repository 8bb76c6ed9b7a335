//! The page in a real browser: it has no complaints, the keyboard reaches everything, tables have
//! the results' numbers, and ten runs stay light. Bounds are counts and bytes, never times.
//!
//! `VRIO_SHOTS=DIRECTORY` also leaves pictures of the page in that directory. With `VRIO_PAGE=PATH`
//! the pictures are of that page, from any source, and the test prints how long it took, and what
//! is crowded on it.

#[path = "browser/driver.rs"]
mod driver;
#[path = "browser/sample.rs"]
mod sample;

use std::path::{Path, PathBuf};

use driver::Browser;
use report::import::import_files;
use report::page::{Page, PageOptions, page};
use report::plot::number::exact;
use report::published::published;
use report::store::Loaded;
use serde_json::{Value, json};

/// The bytes of a page of ten runs, as its requirements say.
const PAGE_BYTES_MAX: usize = 2_000_000;
/// The elements of that page. A browser makes some hundred thousand elements a second.
const ELEMENTS_MAX: u64 = 25_000;
/// The elements in that page's pictures, which are drawn again when something moves.
const DRAWN_MAX: u64 = 4_000;
const RUNS: usize = 10;
/// The height of a picture of a part of a page.
const SHOT: f64 = 1500.0;
/// The looks at a file until it exists. Each look is an order to the browser and its answer.
const LOOKS_MAX: u32 = 100_000;
/// The beginning of the names of plans.
const PLANS: &str = "vrio-plan-";

fn runs(count: usize) -> Vec<Loaded> {
    (0..count).map(sample::run).collect()
}

fn with_published() -> PageOptions {
    let mut published = published();
    published.push(sample::published());
    PageOptions { published, ..PageOptions::default() }
}

fn write(page: &Page, into: &Path) -> String {
    for (name, text) in &page.plots {
        std::fs::write(into.join(name), text).unwrap();
    }
    std::fs::write(into.join("index.html"), &page.html).unwrap();
    format!("file://{}/index.html", into.display())
}

/// One browser serves all parts of the test, since its start takes longer than all other work.
#[test]
fn a_page_works_in_a_browser() {
    let Some(mut browser) = Browser::start() else {
        return println!("SKIP a_page_works_in_a_browser: there is no chromium (scripts/install)");
    };
    let browser = &mut browser;
    let home = tempfile::tempdir().unwrap();
    opens_from_disk(browser, home.path());
    is_used_by_keyboard(browser);
    is_used_by_pointer(browser);
    series_are_hidden(browser);
    paper_is_switched(browser);
    tables_are_the_results(browser);
    prints(browser);
    plots_are_files(browser, home.path());
    hostile_words_stay_words(browser, home.path());
    ten_runs_stay_light(browser, home.path());
    what_programs_print_is_readable(browser, home.path());
    plans_are_readable(browser, home.path());
    if let Some(page) = std::env::var_os("VRIO_PAGE") {
        looks_at(browser, &PathBuf::from(page));
    }
}

/// A page from elsewhere: its pictures, and its cost.
fn looks_at(browser: &mut Browser, page: &Path) {
    browser.show_on("screen", "light", 1400);
    browser.open(&format!("file://{}", page.canonicalize().unwrap().display()));
    let (weight, bytes) = (Weight::of(browser), std::fs::metadata(page).unwrap().len());
    println!("{}: {bytes} bytes, {weight:?}", page.display());
    println!("complaints: {:?}; crowded: {}", browser.complaints(), browser.value(CROWDED));
    for (medium, paper, width) in [
        ("screen", "light", 1400),
        ("screen", "dark", 1400),
        ("screen", "light", 390),
        ("print", "light", 800),
    ] {
        browser.show_on(medium, paper, width);
        shots(browser, &format!("yours-{medium}-{paper}-{width}"));
    }
}

/// The weight of a page.
#[derive(Debug)]
struct Weight {
    elements: u64,
    /// The elements in pictures.
    drawn: u64,
    /// The milliseconds until the page was usable, and until it was complete.
    _usable_ms: Value,
}

impl Weight {
    /// The weight of the page that the browser shows.
    fn of(browser: &mut Browser) -> Self {
        let mut count = |what: &str| {
            browser.value(&format!("document.querySelectorAll('{what}').length")).as_u64().unwrap()
        };
        let (elements, drawn) = (count("*"), count("svg *"));
        let entries = "performance.getEntriesByType('navigation')[0]";
        let times = format!("[{entries}.domInteractive, {entries}.loadEventEnd]");
        Self { elements, drawn, _usable_ms: browser.value(&times) }
    }
}

fn opens_from_disk(browser: &mut Browser, home: &Path) {
    let page = page(&runs(3), &with_published()).unwrap();
    let address = write(&page, home);
    browser.show_on("screen", "light", 1400);
    browser.open(&address);
    assert_eq!(browser.complaints(), Vec::<String>::new());
    let named = "[...document.querySelectorAll('figure svg[role=img]')].every(svg => \
        svg.getAttribute('aria-labelledby').split(' ').every(id => \
        document.getElementById(id).textContent))";
    assert_eq!(browser.value(named), json!(true));
    let ids = "[...document.querySelectorAll('[id]')].map(e => e.id)";
    let twice = format!("{ids}.length - new Set({ids}).size");
    assert_eq!(browser.value(&twice), json!(0));
    let wide = "document.documentElement.scrollWidth - innerWidth";
    for width in [1400, 700, 360] {
        browser.show_on("screen", "light", width);
        shot(browser, &format!("width-{width}"));
        assert!(browser.value(wide).as_i64().unwrap() <= 0, "too wide for {width}");
    }
    browser.show_on("screen", "light", 1400);
}

const TIP: &str = "document.getElementById('tip').hidden ? '' : \
    document.getElementById('tip').textContent";

fn tip(browser: &mut Browser) -> String {
    browser.value(TIP).as_str().unwrap().to_owned()
}

fn is_used_by_keyboard(browser: &mut Browser) {
    let stops =
        browser.value("document.querySelectorAll('a[href], button, summary, [tabindex]').length");
    let mut reached = 0;
    for _ in 0..stops.as_u64().unwrap() {
        browser.press("Tab");
        if browser.value("document.activeElement.matches('.area')") == json!(true) {
            reached = 1;
            break;
        }
    }
    assert_eq!(reached, 1, "no plot is reached by Tab");
    let outline = browser.value("getComputedStyle(document.activeElement).outlineStyle");
    assert_eq!(outline, json!("solid"), "it is not seen where one is");
    let first = tip(browser);
    let latency = &sample::run(0).measurements[0].series[0].points;
    assert!(first.contains(&format!("message size 1 B: {}", exact(latency[0].y))), "{first}");
    assert!(first.contains("1st to 99th percentile"), "{first}");
    browser.press("ArrowRight");
    let second = tip(browser);
    assert!(second.contains(&format!("message size 2 B: {}", exact(latency[1].y))), "{second}");
    browser.press("ArrowDown");
    let below = tip(browser);
    assert!(below.starts_with("run 1") && below.contains("2 B"), "{below}");
    browser.press("End");
    assert!(tip(browser).contains("4194304 B"), "{}", tip(browser));
    shot(browser, "tooltip");
    browser.press("Escape");
    assert_eq!(tip(browser), "");
}

fn is_used_by_pointer(browser: &mut Browser) {
    browser.value("document.activeElement.blur(); scrollTo(0, 0)");
    let place = browser.value(
        "(() => { const svg = document.querySelector('.area svg'); svg.scrollIntoView(); \
         const box = svg.getBoundingClientRect(); const k = box.width / svg.viewBox.baseVal.width; \
         const [, x, y] = svg.querySelector('g[data-p]').dataset.p.split(' ')[3].split(','); \
         return [box.left + x * k, box.top + y * k]; })()",
    );
    let (x, y) = (place[0].as_f64().unwrap(), place[1].as_f64().unwrap());
    browser.point(x + 3.0, y + 2.0);
    assert!(tip(browser).contains("message size 8 B"), "{}", tip(browser));
    browser.point(1.0, 1.0);
    assert_eq!(tip(browser), "");
}

fn series_are_hidden(browser: &mut Browser) {
    let seen = "getComputedStyle(document.querySelector('.area g[data-k=\"1\"]')).display";
    assert_eq!(browser.value(seen), json!("inline"));
    browser.value("document.querySelectorAll('figure .key')[1].focus()");
    browser.press("Enter");
    assert_eq!(browser.value(seen), json!("none"));
    let said = "document.activeElement.getAttribute('aria-pressed')";
    assert_eq!(browser.value(said), json!("false"));
    // A hidden series is passed over.
    browser.value("document.querySelector('.area').focus()");
    browser.press("ArrowDown");
    assert!(tip(browser).starts_with("run 2"), "{}", tip(browser));
    browser.value("document.querySelectorAll('figure .key')[1].focus()");
    browser.press("Enter");
    assert_eq!(browser.value(seen), json!("inline"));
    let published = "[...document.querySelectorAll('figure .key')].map(key => key.textContent)";
    let names = browser.value(published).to_string();
    assert!(names.contains("published: native QDR InfiniBand"), "{names}");
    let drawn = "(() => { const g = document.querySelector('.area .published'); const of = (c) => \
        getComputedStyle(g.querySelector(c)); return [of('.line').strokeDasharray, \
        of('.dots').fill, getComputedStyle(document.body).backgroundColor]; })()";
    let drawn = browser.value(drawn);
    assert_ne!(drawn[0], json!("none"), "it is not dashed");
    assert_eq!(drawn[1], drawn[2], "its markers are not hollow");
}

fn paper_is_switched(browser: &mut Browser) {
    let paper = "getComputedStyle(document.body).backgroundColor";
    let light = browser.value(paper);
    browser.show_on("screen", "dark", 1400);
    let dark = browser.value(paper);
    assert_ne!(light, dark);
    shot(browser, "dark");
    browser.value("document.getElementById('theme').click()");
    assert_eq!(browser.value(paper), light, "the switch says light");
    browser.value("document.getElementById('theme').click()");
    assert_eq!(browser.value(paper), dark);
    browser.show_on("print", "dark", 1400);
    assert_eq!(browser.value(paper), light, "paper is white");
    browser.show_on("screen", "light", 1400);
    browser.value("document.getElementById('theme').click()");
}

fn tables_are_the_results(browser: &mut Browser) {
    let cells = "(() => { const table = \
        document.querySelector('#latency-by-message-size-point-to-point table'); \
        return [...table.tBodies[0].rows].map(row => [...row.cells].map(c => c.textContent)); })()";
    let rows = browser.value(cells);
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 23);
    for (column, run) in runs(3).iter().enumerate() {
        let points = &run.measurements[0].series[0].points;
        for (row, point) in rows.iter().zip(points) {
            assert_eq!(row[0], json!(exact(point.x)));
            let (low, high) = (point.low.unwrap(), point.high.unwrap());
            let text = format!("{} ({} to {})", exact(point.y), exact(low), exact(high));
            assert_eq!(row[column + 1], json!(text));
        }
    }
    let link = "document.querySelector('#latency-by-message-size-point-to-point a[download]')";
    let is_hidden = format!("{link}.hidden && !{link}.href");
    assert_eq!(browser.value(&is_hidden), json!(true), "a table that nobody opened is made a file");
    browser.value(&format!("{link}.closest('figure').querySelector('summary').click()"));
    let csv = csv(browser, "latency-by-message-size-point-to-point");
    let lines: Vec<&str> = csv.split("\r\n").collect();
    assert_eq!((lines.len(), lines[24]), (25, ""), "{csv}");
    assert!(lines[0].starts_with("\"message size, B\",\"run 0"), "{}", lines[0]);
    assert!(lines[0].contains(": from (1st to 99th percentile)\",\"run 0"), "{}", lines[0]);
    let first = &sample::run(0).measurements[0].series[0].points[0];
    let [y, low, high] = [first.y, first.low.unwrap(), first.high.unwrap()].map(exact);
    assert!(lines[1].starts_with(&format!("1,{y},{low},{high},")), "{}", lines[1]);
    browser.value("document.querySelectorAll('details').forEach(d => d.open = true)");
    shot(browser, "tables");
    browser.value("document.querySelectorAll('details').forEach(d => d.open = false)");
}

/// The table of a plot as a CSV file, which the page makes soon after the table was opened.
fn csv(browser: &mut Browser, figure: &str) -> String {
    let link = format!("document.querySelector('#{figure} a[download]')");
    let mut looks = 0;
    while browser.value(&format!("{link}.checkVisibility()")) != json!(true) {
        looks += 1;
        assert!(looks < LOOKS_MAX, "{figure} has no file");
    }
    let csv = format!("decodeURIComponent({link}.href.slice({link}.href.indexOf(',') + 1))");
    browser.value(&csv).as_str().unwrap().to_owned()
}

fn prints(browser: &mut Browser) {
    let answer = browser.ask("Page.printToPDF", &json!({"printBackground": false}));
    let pdf = decoded(&answer);
    assert!(pdf.starts_with(b"%PDF") && pdf.len() > 20_000, "{} bytes", pdf.len());
    if let Some(folder) = std::env::var_os("VRIO_SHOTS") {
        std::fs::write(Path::new(&folder).join("page.pdf"), pdf).unwrap();
    }
    browser.show_on("print", "light", 800);
    shot(browser, "print");
    browser.show_on("screen", "light", 1400);
}

fn plots_are_files(browser: &mut Browser, home: &Path) {
    let plots = page(&runs(3), &with_published()).unwrap().plots;
    assert!(plots.len() >= 7, "{}", plots.len());
    for (name, _) in plots {
        browser.ask("Page.navigate", &json!({"url": format!("file://{}/{name}", home.display())}));
        let ready = "document.documentElement?.tagName + ' ' + document.readyState";
        let mut looks = 0;
        while browser.value(ready) != json!("svg complete") {
            looks += 1;
            assert!(looks < LOOKS_MAX, "{name} is never complete");
            let broken = browser.value("document.querySelector('parsererror') !== null");
            assert_eq!(broken, json!(false), "{name} is no XML");
        }
        shot(browser, &name.replace(".svg", ""));
    }
}

fn hostile_words_stay_words(browser: &mut Browser, home: &Path) {
    let mut bad = sample::run(0);
    bad.run.title = format!("=1+1{}", sample::HOSTILE);
    for measurement in &mut bad.measurements {
        measurement.title = sample::HOSTILE.to_owned();
        measurement.notes.push(sample::HOSTILE.to_owned());
        for series in &mut measurement.series {
            series.name += sample::HOSTILE;
            for point in &mut series.points {
                if let Some(label) = &mut point.label {
                    *label += sample::HOSTILE;
                }
            }
        }
    }
    let page = page(&[bad, sample::run(1)], &with_published()).unwrap();
    browser.open(&write(&page, home));
    assert_eq!(browser.complaints(), Vec::<String>::new());
    let found = browser.value("[document.scripts.length, document.images.length]");
    assert_eq!(found, json!([1, 0]));
    let title = browser.value("document.title");
    assert_eq!(title, json!("2 runs · vrio"));
    browser.value("document.querySelector('.area').focus()");
    assert!(tip(browser).contains(sample::HOSTILE), "{}", tip(browser));
    browser.value("document.querySelectorAll('details').forEach(d => d.open = true)");
    let id = "document.querySelector('figure').id";
    let id = browser.value(id).as_str().unwrap().to_owned();
    let csv = csv(browser, &id);
    let quoted = sample::HOSTILE.replace('"', "\"\"");
    assert!(csv.contains("\"'=") && csv.contains(&quoted), "{csv}");
    assert!(!csv.contains(",\"=") && !csv.contains("\n\"="), "a formula: {csv}");
}

fn ten_runs_stay_light(browser: &mut Browser, home: &Path) {
    let page = page(&runs(RUNS), &with_published()).unwrap();
    assert!(page.html.len() < PAGE_BYTES_MAX, "{} bytes", page.html.len());
    browser.open(&write(&page, home));
    let weight = Weight::of(browser);
    println!("{RUNS} runs: {} bytes, {weight:?}", page.html.len());
    assert!(weight.elements < ELEMENTS_MAX && weight.drawn < DRAWN_MAX, "{weight:?}");
    shot(browser, "ten-runs");
}

/// Finds, in all pictures, texts beyond the ends and texts that lie on one another.
const CROWDED: &str = "[...document.querySelectorAll('figure .area > svg')].flatMap(svg => { \
    const paper = svg.viewBox.baseVal; \
    const all = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBBox()]); \
    const beyond = all.filter(([, b]) => b.x < -1 || b.y < -1 || \
        b.x + b.width > paper.width + 1 || b.y + b.height > paper.height + 1); \
    const on = ([, a], [, b]) => a.x + 1 < b.x + b.width && b.x + 1 < a.x + a.width && \
        a.y + 3 < b.y + b.height && b.y + 3 < a.y + a.height; \
    const pairs = all.flatMap((one, at) => all.slice(at + 1).filter(other => on(one, other)) \
        .map(other => [one[0] + ' / ' + other[0]])); \
    return [...beyond, ...pairs].map(([said]) => svg.closest('figure').id + ': ' + said); })";

/// The output of each program, from the tests of the importers, on one page.
fn what_programs_print_is_readable(browser: &mut Browser, home: &Path) {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let all: Vec<Loaded> = ["vrio-", "osu-7.4-latency", "osu-7.4-bw", "fio-randread", "iperf3-tcp"]
        .iter()
        .flat_map(|kind| files(&data, kind))
        .filter(|file| !file.file_name().unwrap().to_str().unwrap().starts_with(PLANS))
        .map(|file| import_files(&[file], None).unwrap())
        .collect();
    assert!(all.len() > 8, "{}", all.len());
    let page = page(&all, &with_published()).unwrap();
    assert!(page.html.len() < PAGE_BYTES_MAX, "{} bytes", page.html.len());
    browser.open(&write(&page, home));
    assert_eq!(browser.complaints(), Vec::<String>::new());
    assert_eq!(browser.value(CROWDED), json!([]));
    // A check of the check: one text is moved onto another, and one beyond the end.
    browser.value(
        "(() => { const [one, other, third] = document.querySelectorAll('.area svg text'); \
         other.setAttribute('x', one.getAttribute('x')); \
         other.setAttribute('y', one.getAttribute('y')); third.setAttribute('x', '-40'); })()",
    );
    assert!(browser.value(CROWDED).as_array().unwrap().len() >= 2);
    for (paper, width) in [("light", 1400), ("dark", 1400), ("light", 390)] {
        browser.show_on("screen", paper, width);
        shot(browser, &format!("real-{paper}-{width}"));
        let wide = browser.value("document.documentElement.scrollWidth - innerWidth");
        assert!(wide.as_i64().unwrap() <= 0, "too wide for {width}");
    }
    browser.show_on("screen", "light", 1400);
}

/// Plans of `vrio plan`, on paper of both kinds and on a phone's width; the heat map by keyboard.
fn plans_are_readable(browser: &mut Browser, home: &Path) {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let all = files(&data, PLANS).into_iter().map(|file| import_files(&[file], None).unwrap());
    let page = page(&all.collect::<Vec<_>>(), &PageOptions::default()).unwrap();
    for (paper, width) in [("light", 360), ("dark", 360), ("dark", 1400), ("light", 1400)] {
        browser.show_on("screen", paper, width);
        browser.open(&write(&page, home));
        assert_eq!(browser.complaints(), Vec::<String>::new());
        assert_eq!(browser.value(CROWDED), json!([]));
        let wide = browser.value("document.documentElement.scrollWidth - innerWidth");
        assert!(wide.as_i64().unwrap() <= 0, "too wide for {width}");
        shots(browser, &format!("plans-{paper}-{width}"));
    }
    let map = "change-of-price-by-servers-racks-of-all-sizes-vrio-plan-search-no-spare-iohost";
    browser.value(&format!("document.querySelector('#{map} .area').focus()"));
    let cell = |row: usize, column: usize| {
        let table = format!("document.querySelector('#{map} table').tBodies[0]");
        format!("{table}.rows[{row}].cells[{column}].textContent")
    };
    // Right goes to the next size of rack, and down to the next share.
    for (key, name, row, column) in
        [("", "30 %", 0, 1), ("ArrowRight", "30 %", 1, 1), ("ArrowDown", "40 %", 1, 2)]
    {
        if !key.is_empty() {
            browser.press(key);
        }
        let said = tip(browser);
        let number = browser.value(&cell(row, column));
        let servers = browser.value(&cell(row, 0));
        let text = format!("servers {}: {} %", servers.as_str().unwrap(), number.as_str().unwrap());
        assert!(said.contains(name) && said.contains(&text), "{said}: {name}, {text}");
    }
}

/// The files whose names begin so, in order.
fn files(folder: &Path, kind: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let name = |file: &Path| file.file_name().unwrap().to_str().unwrap().to_owned();
    let mut all: Vec<PathBuf> = all.filter(|file| name(file).starts_with(kind)).collect();
    all.sort();
    all
}

/// The bytes of an answer's `data`.
fn decoded(answer: &Value) -> Vec<u8> {
    data_encoding::BASE64.decode(answer["data"].as_str().unwrap().as_bytes()).unwrap()
}

/// Pictures of a long page, each as high as a large screen.
fn shots(browser: &mut Browser, name: &str) {
    let size = browser.ask("Page.getLayoutMetrics", &json!({}))["cssContentSize"].clone();
    let height = size["height"].as_f64().unwrap();
    let mut y = 0.0;
    for at in 0.. {
        let clip = json!({"x": 0, "y": y, "width": size["width"], "height": SHOT, "scale": 1});
        picture(browser, &format!("{name}-{at:02}"), Some(clip));
        y += SHOT;
        if y >= height {
            break;
        }
    }
}

fn shot(browser: &mut Browser, name: &str) {
    if name == "tooltip" {
        return picture(browser, name, None);
    }
    let size = browser.ask("Page.getLayoutMetrics", &json!({}));
    let mut clip = size["cssContentSize"].clone();
    clip["scale"] = json!(1);
    picture(browser, name, Some(clip));
}

/// A picture of the window, or of a part of the page.
fn picture(browser: &mut Browser, name: &str, clip: Option<Value>) {
    let Some(folder) = std::env::var_os("VRIO_SHOTS") else { return };
    let mut order = json!({"format": "png"});
    if let Some(clip) = clip {
        order["captureBeyondViewport"] = json!(true);
        order["clip"] = clip;
    }
    let answer = browser.ask("Page.captureScreenshot", &order);
    std::fs::write(Path::new(&folder).join(format!("{name}.png")), decoded(&answer)).unwrap();
}
