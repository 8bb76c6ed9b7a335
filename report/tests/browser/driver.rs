//! A browser without a window, controlled over a pipe: Chromium's own protocol, a message of JSON
//! and a zero byte each way. It needs neither a socket nor another program.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// The time for one answer: a machine with two cores that also builds something is slow.
const PATIENCE: Duration = Duration::from_secs(120);
/// The names of the program, Debian's first.
const PROGRAMS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<Value>,
    events: VecDeque<Value>,
    session: Option<String>,
    last: u64,
    _home: TempDir,
}

impl Browser {
    /// Starts a browser; none if there is no such program.
    pub(crate) fn start() -> Option<Self> {
        let program = PROGRAMS.into_iter().find(|program| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
        })?;
        let home = tempfile::tempdir().unwrap();
        // The browser reads orders from descriptor 3 and answers to 4.
        let script = "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1";
        let mut child = Command::new("sh")
            .args(["-c", script, "sh", program])
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--disable-extensions", "--disable-background-networking"])
            .args(["--disable-component-update", "--disable-sync", "--hide-scrollbars"])
            .args(["--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", home.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let orders = child.stdin.take().unwrap();
        let answers = listen(child.stdout.take().unwrap());
        let mut browser = Self {
            child,
            orders,
            answers,
            events: VecDeque::new(),
            session: None,
            last: 0,
            _home: home,
        };
        browser.attach();
        Some(browser)
    }

    fn attach(&mut self) {
        let target = self.ask("Target.createTarget", &json!({"url": "about:blank"}));
        let id = target["targetId"].clone();
        let to = json!({"targetId": id, "flatten": true});
        let session = self.ask("Target.attachToTarget", &to)["sessionId"].clone();
        self.session = Some(session.as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            self.ask(&format!("{domain}.enable"), &json!({}));
        }
    }

    /// Gives an order and waits for its answer; other messages that come are kept.
    pub(crate) fn ask(&mut self, method: &str, parameters: &Value) -> Value {
        self.last += 1;
        let mut order = json!({"id": self.last, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            order["sessionId"] = json!(session);
        }
        let mut bytes = order.to_string().into_bytes();
        bytes.push(0);
        self.orders.write_all(&bytes).expect("the browser listens");
        let until = Instant::now() + PATIENCE;
        loop {
            let message = self.next(until).unwrap_or_else(|| panic!("no answer to {method}"));
            if message["id"] == json!(self.last) {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].clone();
            }
            self.events.push_back(message);
        }
    }

    fn next(&mut self, until: Instant) -> Option<Value> {
        match self.answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("the browser has ended"),
        }
    }

    /// Opens a page and waits until it is loaded.
    pub(crate) fn open(&mut self, address: &str) {
        self.events.clear();
        self.ask("Page.navigate", &json!({"url": address}));
        let until = Instant::now() + PATIENCE;
        while self.value("document.documentElement?.dataset.ready") != json!("1") {
            assert!(Instant::now() < until, "the page of {address} did not get ready");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The value of an expression in the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "returnByValue": true});
        let answer = self.ask("Runtime.evaluate", &parameters);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Presses a key that is no letter.
    pub(crate) fn press(&mut self, key: &str) {
        let codes = [
            ("Tab", 9),
            ("Enter", 13),
            ("Escape", 27),
            ("End", 35),
            ("ArrowUp", 38),
            ("ArrowRight", 39),
            ("ArrowDown", 40),
        ];
        let (_, code) = codes.into_iter().find(|(name, _)| *name == key).expect("a known key");
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let order = json!({
                "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code,
                "text": if kind == "keyDown" { text } else { "" },
            });
            self.ask("Input.dispatchKeyEvent", &order);
        }
    }

    /// Moves the pointer to a place in the window.
    pub(crate) fn point(&mut self, x: f64, y: f64) {
        let order = json!({"type": "mouseMoved", "x": x, "y": y});
        self.ask("Input.dispatchMouseEvent", &order);
    }

    /// The page's warnings and failures, and its requests to a network.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        // An answer comes after all events before it.
        self.value("1");
        let is_complaint = |event: &&Value| match event["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" | "Log.entryAdded" => true,
            "Runtime.consoleAPICalled" => true,
            "Network.requestWillBeSent" => {
                let address = event["params"]["request"]["url"].as_str().unwrap_or_default();
                !address.starts_with("file:") && !address.starts_with("data:")
            }
            _ => false,
        };
        self.events.iter().filter(is_complaint).map(Value::to_string).collect()
    }

    /// Shows the page on a medium, `screen` or `print`, with a scheme, `light` or `dark`.
    pub(crate) fn show_on(&mut self, medium: &str, scheme: &str, width: u32) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.ask("Emulation.setEmulatedMedia", &json!({"media": medium, "features": features}));
        let size = json!({
            "width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": false,
        });
        self.ask("Emulation.setDeviceMetricsOverride", &size);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser ends by itself when its pipe is closed; this ends a browser that hangs.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The browser's messages, until the browser ends.
fn listen(answers: ChildStdout) -> Receiver<Value> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let mut answers = BufReader::new(answers);
        let mut bytes = Vec::new();
        while answers.read_until(0, &mut bytes).is_ok_and(|count| count > 0) {
            bytes.pop();
            let Ok(message) = serde_json::from_slice(&bytes) else { break };
            if send.send(message).is_err() {
                break;
            }
            bytes.clear();
        }
    });
    receive
}
