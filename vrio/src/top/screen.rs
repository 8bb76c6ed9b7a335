//! The terminal: drawn once a second and at each key, left as it was found.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal::disable_raw_mode;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tokio::signal::unix::{SignalKind, signal};

use super::page::{self, PageRow, Tone};
use super::view::NodeView;
use super::{INTERVAL, StatusSample};

/// How often the flag of a signal is read.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// How long the screen may take to end after a signal. It may be waiting for a node that does not
/// answer, or for a terminal that takes nothing.
const END_TIME_MAX: Duration = Duration::from_secs(3);

const HELP: &str = "q quits, arrows and Page Up/Down scroll";

/// The content of the screen.
#[derive(Debug)]
pub(super) struct Screen {
    view: NodeView,
    /// The reason why there is no newer view.
    problem: Option<String>,
    /// The first line that is shown.
    top: usize,
    /// The lines that fitted when the screen was drawn last.
    height: usize,
    /// The lines that the view had then.
    length: usize,
}

/// The step after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScreenStep {
    Go,
    Quit,
}

/// Shows the node until a key or a signal ends it.
pub(super) fn run(socket: &Path, first: StatusSample) -> Result<()> {
    end_with_terminal()?;
    let ended = signals()?;
    // The library's hook for panics does the same as `restore`.
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let result = show(&mut terminal, socket, first, &ended);
    // A terminal that refuses cannot be helped, and `result` says why it refuses.
    let _ = ratatui::try_restore();
    result
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    socket: &Path,
    first: StatusSample,
    ended: &AtomicBool,
) -> Result<()> {
    let mut screen = Screen::new(first.since(None));
    let mut last = first;
    let mut due = Instant::now() + INTERVAL;
    terminal.draw(|frame| screen.draw(frame))?;
    while !ended.load(Relaxed) {
        let wait = due.saturating_duration_since(Instant::now()).min(LOOK_AGAIN);
        let mut changed = false;
        if event::poll(wait)? {
            match event::read()? {
                Event::Key(key) if screen.key(key) == ScreenStep::Quit => return Ok(()),
                Event::Key(_) | Event::Resize(..) => changed = true,
                _ => {}
            }
        }
        if Instant::now() >= due {
            due = Instant::now() + INTERVAL;
            changed = true;
            match StatusSample::take(socket) {
                Ok(sample) => {
                    screen.show(sample.since(Some(&last)));
                    last = sample;
                }
                Err(failure) => screen.problem = Some(failure.to_string()),
            }
        }
        if changed {
            terminal.draw(|frame| screen.draw(frame))?;
        }
    }
    Ok(())
}

/// Ends this process when its terminal is gone. There is nothing to restore then, and the library
/// that reads keys would go on reading for ever.
fn end_with_terminal() -> Result<()> {
    let wait = || loop {
        let stdin = std::io::stdin();
        // No events are asked for: poll(2) reports a terminal that is gone in any case.
        let mut terminal = [PollFd::new(&stdin, PollFlags::empty())];
        match poll(&mut terminal, None) {
            Err(Errno::INTR) => {}
            Ok(_) => std::process::exit(0),
            Err(_) => return,
        }
    };
    std::thread::Builder::new().name("terminal".to_owned()).spawn(wait)?;
    Ok(())
}

/// Ends this process, and restores the terminal as far as that can be done without waiting.
fn end_at_once() -> ! {
    let stdout = std::io::stdout();
    let mut terminal = [PollFd::new(&stdout, PollFlags::OUT)];
    let _ = poll(&mut terminal, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    let _ = if terminal[0].revents().contains(PollFlags::OUT) {
        ratatui::try_restore()
    } else {
        disable_raw_mode()
    };
    std::process::exit(0)
}

/// A flag that a request to end this process sets. The keys that would send one are only keys here.
fn signals() -> Result<Arc<AtomicBool>> {
    let ended = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = {
        let _inside = runtime.enter();
        [SignalKind::terminate(), SignalKind::hangup(), SignalKind::interrupt()].map(signal)
    };
    let seen = Arc::clone(&ended);
    let wait = move || {
        let [terminate, hangup, interrupt] = &mut signals;
        let (Ok(terminate), Ok(hangup), Ok(interrupt)) = (terminate, hangup, interrupt) else {
            return;
        };
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
        seen.store(true, Relaxed);
        std::thread::sleep(END_TIME_MAX);
        end_at_once()
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait)?;
    Ok(ended)
}

impl Screen {
    pub(super) fn new(view: NodeView) -> Self {
        Self { view, problem: None, top: 0, height: 0, length: 0 }
    }

    /// Shows a newer view.
    pub(super) fn show(&mut self, view: NodeView) {
        self.view = view;
        self.problem = None;
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> ScreenStep {
        if key.kind == KeyEventKind::Release {
            return ScreenStep::Go;
        }
        let page = self.height.saturating_sub(1).max(1);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return ScreenStep::Quit,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return ScreenStep::Quit;
            }
            KeyCode::Up | KeyCode::Char('k') => self.top = self.top.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.top += 1,
            KeyCode::PageUp => self.top = self.top.saturating_sub(page),
            KeyCode::PageDown | KeyCode::Char(' ') => self.top += page,
            KeyCode::Home | KeyCode::Char('g') => self.top = 0,
            KeyCode::End | KeyCode::Char('G') => self.top = self.length,
            _ => {}
        }
        self.top = self.top.min(self.length.saturating_sub(self.height));
        ScreenStep::Go
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let rows = page::rows(&self.view, usize::from(area.width));
        // The last line is for help.
        self.height = usize::from(area.height.saturating_sub(1));
        self.length = rows.len();
        self.top = self.top.min(self.length.saturating_sub(self.height));
        let mut lines: Vec<_> =
            rows.into_iter().skip(self.top).take(self.height).map(line).collect();
        lines.resize(self.height, Line::default());
        if area.height > 0 {
            lines.push(self.foot());
        }
        frame.render_widget(Paragraph::new(lines), area);
    }

    fn foot(&self) -> Line<'static> {
        if let Some(problem) = &self.problem {
            return Line::styled(problem.clone(), Style::new().fg(Color::Red));
        }
        let below = self.length.saturating_sub(self.top + self.height);
        let text = match below {
            0 => HELP.to_owned(),
            below => format!("{below} more lines below; {HELP}"),
        };
        Line::styled(text, Style::new().add_modifier(Modifier::DIM))
    }
}

fn line(row: PageRow) -> Line<'static> {
    let style = match row.tone {
        Tone::Plain => Style::new(),
        Tone::Header => Style::new().add_modifier(Modifier::BOLD),
        Tone::Warning => Style::new().fg(Color::Yellow),
        Tone::Failed => Style::new().fg(Color::Red),
    };
    Line::styled(row.text, style)
}

#[cfg(test)]
mod tests;
