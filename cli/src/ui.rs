//! `muster ui`: the fleet as a web page, served on this machine with the operator's own identity.
//!
//! The files of the page are [`assets`]. Its feed is made by [`feed`] from the store's watches and the controller's
//! answers: [`tile`] and [`model`] say what is drawn and what has changed, [`frames`] encodes it. [`routes`] serves all
//! of it and refuses other sites, [`node_answer`] has everything about one node, and [`actions`] what the page may do
//! if it is allowed to do anything.

mod actions;
mod assets;
mod feed;
mod frames;
mod model;
mod node_answer;
mod routes;
mod tile;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use muster_rpc::http::serve_routes;
use muster_rpc::server::{BindError, Listener, bind};
use muster_rpc::shutdown::Shutdown;
use tokio::task::JoinSet;

use self::actions::Token;
use self::feed::Feed;
use crate::connection::{Connection, ConnectionFlags};
use crate::failure::{Exit, Failure};
use crate::terminal::Terminal;

/// Shows the fleet as a web page, which this command serves on this machine
///
/// The page reads the store and the controller with your addresses and certificates. It can be opened on this machine
/// only, by everybody on it. It changes nothing unless --allow-actions is given; then only the address that this
/// command prints can, because it has a token.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// HTTP address to serve the page on; must be a loopback address; port 0 picks a free port
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS")]
    listen: SocketAddr,

    #[command(flatten)]
    page: PageFlags,

    #[command(flatten)]
    connection: ConnectionFlags,
}

/// What the page may do, and where it finds traces.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct PageFlags {
    /// Let the page cordon, uncordon and drain nodes
    #[arg(long)]
    allow_actions: bool,

    /// Address of a trace, for links: {trace} in it is replaced by the trace's id, as in
    /// http://127.0.0.1:16686/trace/{trace}
    #[arg(long, env = "MUSTER_TRACE_URL", value_name = "URL")]
    trace_url: Option<TraceUrl>,
}

/// The address of a trace, with `{trace}` for its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TraceUrl(String);

impl TraceUrl {
    fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TraceUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<TraceUrl, String> {
        // The page makes a link of it: another scheme could be a script.
        if !text.starts_with("http://") && !text.starts_with("https://") {
            return Err("must start with http:// or https://".to_owned());
        }
        if !text.contains("{trace}") {
            return Err("must have {trace} where the trace's id goes".to_owned());
        }
        Ok(TraceUrl(text.to_owned()))
    }
}

/// Why the page cannot be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UiError {
    #[error("{flag}: {address} can be reached by other machines; it must be a loopback address")]
    Exposed { flag: &'static str, address: SocketAddr },
    #[error(transparent)]
    Bind(#[from] BindError),
}

impl From<UiError> for Failure {
    fn from(error: UiError) -> Failure {
        let exit = if matches!(error, UiError::Exposed { .. }) { Exit::Usage } else { Exit::Failed };
        Failure::new(exit, error)
            .hint("from another machine the page is reached by `ssh -L 8080:127.0.0.1:PORT HOST`, as localhost:8080")
    }
}

/// What the handlers share.
#[derive(Debug)]
struct Pages {
    connection: Connection,
    feed: Feed,
    /// The token for actions, if they are allowed.
    token: Option<Token>,
    trace_url: Option<TraceUrl>,
    shutdown: Shutdown,
}

/// A page that listens, and is to be served.
pub(crate) struct Page {
    listener: Listener,
    flags: PageFlags,
    token: Option<Token>,
}

impl Page {
    /// Listens on an address of this machine.
    pub(crate) async fn bind(
        flag: &'static str,
        address: SocketAddr,
        flags: &PageFlags,
    ) -> Result<Page, UiError> {
        if !address.ip().to_canonical().is_loopback() {
            return Err(UiError::Exposed { flag, address });
        }
        let listener = bind(flag, address).await?;
        let token = flags.allow_actions.then(Token::new);
        Ok(Page { listener, flags: flags.clone(), token })
    }

    /// As [`Page::bind`] on the preferred port of this machine, or on a free one if that is taken.
    pub(crate) async fn bind_near(flag: &'static str, port: u16, flags: &PageFlags) -> Result<Page, UiError> {
        let at = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        match Page::bind(flag, at(port), flags).await {
            Err(UiError::Bind(error)) if error.error.kind() == io::ErrorKind::AddrInUse => {
                Page::bind(flag, at(0), flags).await
            }
            bound => bound,
        }
    }

    /// The address to open, with the token if there is one.
    pub(crate) fn address(&self) -> PageAddress {
        PageAddress { address: self.listener.address(), token: self.token.clone() }
    }

    /// Serves the page until the shutdown is requested.
    pub(crate) async fn serve(self, connection: Connection, shutdown: Shutdown) -> io::Result<()> {
        let mut tasks = JoinSet::new();
        let pages = Pages {
            feed: Feed::start(connection.clone(), &mut tasks),
            connection,
            token: self.token,
            trace_url: self.flags.trace_url,
            shutdown: shutdown.clone(),
        };
        serve_routes(self.listener, routes::routes(Arc::new(pages)), shutdown).await
    }
}

/// The address of a page, as people open it.
#[derive(Clone, Debug)]
pub(crate) struct PageAddress {
    address: SocketAddr,
    token: Option<Token>,
}

#[cfg(test)]
impl PageAddress {
    /// The address of a page that cannot act.
    pub(crate) fn for_test(address: SocketAddr) -> PageAddress {
        PageAddress { address, token: None }
    }
}

impl fmt::Display for PageAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}/", self.address)?;
        match &self.token {
            Some(token) => write!(f, "#token={}", token.as_str()),
            None => Ok(()),
        }
    }
}

pub(crate) async fn run(flags: Flags) -> Result<(), Failure> {
    let connection = flags.connection.resolve()?;
    // Before anything is printed: certificates that cannot be read are an error of the command line.
    connection.store()?;
    connection.controllers()?;
    let page = Page::bind("--listen", flags.listen, &flags.page).await?;
    let failed = |error: io::Error| Failure::new(Exit::Failed, format!("cannot serve the page: {error}"));
    let shutdown = Shutdown::on_signals_of_terminal().map_err(failed)?;
    let rights = if flags.page.allow_actions {
        "The page can cordon, uncordon and drain nodes: keep the address to yourself."
    } else {
        "The page is read-only; --allow-actions changes that."
    };
    Terminal::stdout().print(&format!("{}\n{rights} Press ctrl-C to stop.\n", page.address()))?;
    page.serve(connection, shutdown).await.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_that_other_machines_reach_is_refused() {
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
            let refused = Page::bind("--listen", address.parse().unwrap(), &PageFlags::default()).await;
            let refused = refused.err().unwrap().to_string();
            assert!(refused.contains("--listen") && refused.contains("loopback"), "{refused}");
        }
    }

    #[tokio::test]
    async fn a_preferred_port_that_is_taken_is_replaced_by_a_free_one() {
        let flags = PageFlags::default();
        let first = Page::bind("--ui-listen", "127.0.0.1:0".parse().unwrap(), &flags).await.unwrap();
        let port = first.listener.address().port();
        let second = Page::bind_near("--ui-listen", port, &flags).await.unwrap();
        assert_ne!(second.listener.address().port(), port);
    }

    #[tokio::test]
    async fn only_a_page_that_may_act_has_a_token_in_its_address() {
        for allow_actions in [false, true] {
            let flags = PageFlags { allow_actions, trace_url: None };
            let page = Page::bind("--listen", "127.0.0.1:0".parse().unwrap(), &flags).await.unwrap();
            assert_eq!(page.address().to_string().contains("#token="), allow_actions);
        }
    }

    #[test]
    fn a_trace_url_is_an_address_with_a_place_for_the_id() {
        assert!("https://traces.example/trace/{trace}".parse::<TraceUrl>().is_ok());
        for text in ["javascript:alert('{trace}')", "http://traces.example/", "", "//x/{trace}"] {
            assert!(text.parse::<TraceUrl>().is_err(), "{text}");
        }
    }
}
