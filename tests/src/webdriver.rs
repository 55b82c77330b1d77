//! A client of WebDriver, the protocol that browsers are driven by, for Debian's `chromium` and `chromium-driver`.
//!
//! It has what the tests of the page need. The crates that have all of it bring licences and dependencies of which the
//! rest of the workspace has nothing.

#![allow(clippy::disallowed_methods, reason = "a real browser runs by the real clock")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::store_process::TIMEOUT;
use crate::tools::tool;

/// The pause between two checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A browser with one window. It is closed when it is dropped.
#[derive(Debug)]
pub struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
    /// The browser's profile.
    _profile: TempDir,
}

/// A window's size in pixels of the page, how many pixels of the screen each of them has, and whether it is dark.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub width: u32,
    pub height: u32,
    pub scale: u32,
    pub is_dark: bool,
}

impl Window {
    /// The window of a computer.
    pub const WIDE: Window = Window { width: 1440, height: 900, scale: 1, is_dark: false };
    /// The window of a telephone.
    pub const NARROW: Window = Window { width: 390, height: 844, scale: 2, is_dark: true };
}

impl Browser {
    /// Starts a browser without a screen.
    ///
    /// # Panics
    /// When the browser cannot be started.
    pub fn start(window: Window) -> Browser {
        let mut driver = Command::new(tool("chromedriver"))
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver can be run");
        let address = SocketAddr::from(([127, 0, 0, 1], port_of(&mut driver)));
        let profile = tempfile::tempdir().expect("a directory for the profile");
        let mut browser = Browser { driver, address, session: String::new(), _profile: profile };
        let profile = browser._profile.path().display().to_string();
        let arguments = [
            "--headless".to_owned(),
            // It runs as root, and in containers without a GPU and with a small /dev/shm.
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--disable-background-networking".to_owned(),
            "--disable-component-update".to_owned(),
            "--disable-sync".to_owned(),
            "--hide-scrollbars".to_owned(),
            format!("--user-data-dir={profile}"),
        ];
        let capabilities = json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": { "args": arguments, "binary": tool("chromium") },
            "goog:loggingPrefs": { "browser": "ALL" },
            "timeouts": { "script": TIMEOUT.as_millis() as u64 },
        } } });
        let session = browser.post("/session", &capabilities);
        browser.session = session["sessionId"].as_str().expect("a session has an id").to_owned();
        browser.resize(window);
        browser
    }

    /// Changes the size and the theme of the window.
    pub fn resize(&self, window: Window) {
        let Window { width, height, scale, is_dark } = window;
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            &json!({ "width": width, "height": height, "deviceScaleFactor": scale, "mobile": scale > 1 }),
        );
        let theme = if is_dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": theme }]);
        self.devtools("Emulation.setEmulatedMedia", &json!({ "features": features }));
    }

    fn devtools(&self, command: &str, parameters: &Value) {
        self.call("POST", "/goog/cdp/execute", &json!({ "cmd": command, "params": parameters }));
    }

    /// Opens an address and waits until it is loaded.
    pub fn open(&self, url: &str) {
        self.call("POST", "/url", &json!({ "url": url }));
    }

    /// The value of an expression of the page.
    ///
    /// # Panics
    /// When the expression throws.
    pub fn value(&self, expression: &str) -> Value {
        self.run(&format!("return ({expression});"))
    }

    /// The text of an expression of the page.
    pub fn text(&self, expression: &str) -> String {
        self.value(expression).as_str().map(str::to_owned).unwrap_or_default()
    }

    /// What a script returns; it may `await`.
    ///
    /// # Panics
    /// When it throws.
    pub fn run(&self, script: &str) -> Value {
        let wrapped = format!(
            "const done = arguments[arguments.length - 1];\
             (async () => {{ {script} }})().then((value) => done({{ value }}), \
             (error) => done({{ error: String(error.stack) }}));"
        );
        let answer = self.call("POST", "/execute/async", &json!({ "script": wrapped, "args": [] }));
        assert!(answer["error"].is_null(), "{script}: {}", answer["error"]);
        answer["value"].clone()
    }

    /// Waits until an expression of the page is true.
    ///
    /// # Panics
    /// When it does not become true in time, with the text of the page and its console.
    pub fn wait_until(&self, expression: &str) {
        let deadline = Instant::now() + TIMEOUT;
        while !self.value(expression).as_bool().unwrap_or_default() {
            assert!(
                Instant::now() < deadline,
                "it did not come to {expression}; the page:\n{}\nits console: {:?}",
                self.text("document.body.innerText"),
                self.console()
            );
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Presses keys one after the other; special ones are the code points of WebDriver.
    pub fn press(&self, keys: &str) {
        let presses = keys.chars().flat_map(|key| {
            let key = key.to_string();
            [json!({ "type": "keyDown", "value": key }), json!({ "type": "keyUp", "value": key })]
        });
        let presses: Vec<Value> = presses.collect();
        self.act(&json!([{ "type": "key", "id": "keyboard", "actions": presses }]));
    }

    /// Clicks a point of the window.
    pub fn click_at(&self, x: i64, y: i64) {
        self.act(&json!([{ "type": "pointer", "id": "mouse", "actions": [
            { "type": "pointerMove", "x": x, "y": y, "duration": 0 },
            { "type": "pointerDown", "button": 0 },
            { "type": "pointerUp", "button": 0 },
        ] }]));
    }

    /// Clicks the first element of a selector.
    pub fn click(&self, selector: &str) {
        let found = self.call("POST", "/element", &json!({ "using": "css selector", "value": selector }));
        let element = found.as_object().and_then(|found| found.values().next()).and_then(Value::as_str);
        let element = element.unwrap_or_else(|| panic!("there is no {selector}"));
        self.call("POST", &format!("/element/{element}/click"), &json!({}));
    }

    fn act(&self, actions: &Value) {
        self.call("POST", "/actions", &json!({ "actions": actions }));
    }

    /// What the browser has logged since the last call: errors, warnings, and what its policies have refused.
    pub fn console(&self) -> Vec<String> {
        let entries = self.call("POST", "/se/log", &json!({ "type": "browser" }));
        let entries = entries.as_array().cloned().unwrap_or_default();
        entries.iter().map(|entry| format!("{} {}", entry["level"], entry["message"])).collect()
    }

    /// Writes a picture of the window, as a PNG.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn save(&self, file: &Path) {
        let picture = self.call("GET", "/screenshot", &Value::Null);
        let bytes = from_base64(picture.as_str().expect("a picture is a text"));
        std::fs::write(file, bytes).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }

    fn call(&self, method: &str, path: &str, content: &Value) -> Value {
        self.request(method, &format!("/session/{}{path}", self.session), content)
    }

    fn post(&self, path: &str, content: &Value) -> Value {
        self.request("POST", path, content)
    }

    fn request(&self, method: &str, path: &str, content: &Value) -> Value {
        let answer = send(self.address, method, path, content)
            .unwrap_or_else(|error| panic!("{method} {path}: chromedriver does not answer: {error}"));
        let value = answer["value"].clone();
        assert!(value.get("error").is_none_or(Value::is_null), "{method} {path}: {value}");
        value
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It ends its browser with its session; when it is killed, the browser would stay.
        let _ = send(self.address, "DELETE", &format!("/session/{}", self.session), &Value::Null);
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// The bytes of a text in base64.
fn from_base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits: Vec<u8> = text.bytes().filter_map(digit).collect();
    let bytes = digits.chunks(4).flat_map(|four| {
        let bits =
            four.iter().fold(0u32, |bits, digit| bits << 6 | u32::from(*digit)) << (6 * (4 - four.len()));
        bits.to_be_bytes()[1..four.len()].to_vec()
    });
    bytes.collect()
}

/// The port that the driver says that it listens on.
fn port_of(driver: &mut Child) -> u16 {
    let lines = BufReader::new(driver.stdout.take().expect("stdout is piped")).lines();
    let mut lines = lines.map_while(Result::ok);
    let port = lines.find_map(|line| {
        let (_, port) = line.split_once("started successfully on port ")?;
        port.trim_end_matches('.').parse().ok()
    });
    port.expect("chromedriver says its port")
}

/// Sends a request and reads the whole answer, which is JSON.
fn send(address: SocketAddr, method: &str, path: &str, content: &Value) -> std::io::Result<Value> {
    let content = if content.is_null() { String::new() } else { content.to_string() };
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(2 * TIMEOUT))?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{content}",
        content.len()
    )?;
    let mut answer = BufReader::new(stream);
    // The driver keeps the connection open, whatever it is asked: the answer is as long as it says.
    let (mut line, mut length) = (String::new(), 0);
    while answer.read_line(&mut line)? > 2 {
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().map_err(std::io::Error::other)?;
        }
        line.clear();
    }
    let mut body = vec![0; length];
    answer.read_exact(&mut body)?;
    serde_json::from_slice(&body).map_err(std::io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::from_base64;

    #[test]
    fn base64_is_read_with_and_without_padding() {
        for (text, expected) in
            [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9v\nYmFy", "foobar")]
        {
            assert_eq!(from_base64(text), expected.as_bytes(), "{text}");
        }
    }
}
