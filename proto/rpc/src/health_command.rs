//! The `health` subcommand: asks the process at `--http-listen` whether it is ready.
//!
//! It is the health check of images that hold nothing but the binary: they have no shell and no curl. The exit code is
//! the result; the conditions that do not hold are printed to stderr.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Arg, Command, CommandFactory};

/// The first argument that selects this command.
const SUBCOMMAND: &str = "health";
/// A line about this command, for the help of the binary.
pub const HELP: &str =
    "`health` as the first argument asks the process at --http-listen whether it is ready.";
/// A process that has not answered by then is not ready.
const PATIENCE: Duration = Duration::from_secs(3);
/// The longest response that is read; `/readyz` answers a few lines.
const LONGEST_ANSWER: u64 = 64 * 1024;

/// Why a process does not count as ready.
#[derive(Debug, thiserror::Error)]
pub enum HealthError {
    #[error("--http-listen: port 0 means a port chosen at the start; give that port")]
    UnknownPort,
    #[error("no answer from {address}: {error}")]
    NoAnswer { address: SocketAddr, error: io::Error },
    #[error("not ready: {0}")]
    NotReady(String),
    #[error("{address} is not a Muster process: it answered {answer:?}")]
    NotMuster { address: SocketAddr, answer: String },
}

/// Runs the `health` command, or returns `None` if these arguments (the program's name first) are not for it. `T` are
/// the flags of the process itself: the command has the same `--http-listen`, with its variable and default.
pub fn run<T: CommandFactory>(args: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut args = args.into_iter();
    let program = args.next()?;
    if args.next()? != OsStr::new(SUBCOMMAND) {
        return None;
    }
    let mut command = command::<T>();
    let matches = command.try_get_matches_from_mut(std::iter::once(program).chain(args));
    let address = match matches {
        Ok(matches) => matches.get_one::<SocketAddr>(HTTP_LISTEN).copied(),
        Err(error) => error.exit(),
    };
    match check(address.expect("--http-listen has a default")) {
        Ok(()) => Some(ExitCode::SUCCESS),
        Err(error) => {
            eprintln!("{}: {error}", command.get_name());
            Some(ExitCode::FAILURE)
        }
    }
}

const HTTP_LISTEN: &str = "http_listen";

fn command<T: CommandFactory>() -> Command {
    let of_process = T::command();
    let listens: Option<Arg> = of_process.get_arguments().find(|arg| arg.get_id() == HTTP_LISTEN).cloned();
    Command::new(format!("{} {SUBCOMMAND}", of_process.get_name()))
        .about("Asks the process that serves metrics and health at this address whether it is ready")
        .arg(listens.expect("every Muster process has --http-listen"))
}

/// Asks `/readyz` of the process that listens at this address.
///
/// # Errors
/// When it is not ready or does not answer.
pub fn check(listens: SocketAddr) -> Result<(), HealthError> {
    let address = reachable(listens)?;
    let answer = get(address, "/readyz").map_err(|error| HealthError::NoAnswer { address, error })?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    match head.split_whitespace().nth(1) {
        Some("200") => Ok(()),
        Some("503") => Err(HealthError::NotReady(body.trim().replace('\n', "; "))),
        _ => {
            let first = answer.lines().next().unwrap_or_default().to_owned();
            Err(HealthError::NotMuster { address, answer: first })
        }
    }
}

/// The address to connect to: a process that listens on all addresses also listens on loopback.
fn reachable(listens: SocketAddr) -> Result<SocketAddr, HealthError> {
    let ip = match listens {
        _ if listens.port() == 0 => return Err(HealthError::UnknownPort),
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        _ => listens.ip(),
    };
    Ok(SocketAddr::new(ip, listens.port()))
}

fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(LONGEST_ANSWER).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::serve_http;
    use crate::readiness::Readiness;
    use crate::server::bind;
    use crate::shutdown::Shutdown;
    use clap::Parser;
    use prometheus_client::registry::Registry;
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;
    use std::sync::Arc;

    #[derive(Debug, Parser)]
    #[command(name = "muster-part")]
    struct Flags {
        /// Something that the process needs and the health command does not
        #[arg(long = "store", required = true)]
        _store: String,
        #[arg(long, default_value = "127.0.0.1:7401")]
        http_listen: SocketAddr,
    }

    async fn checked_off_thread(address: SocketAddr) -> Result<(), String> {
        let asking = tokio::task::spawn_blocking(move || check(address).map_err(|error| error.to_string()));
        asking.await.unwrap()
    }

    #[tokio::test]
    async fn the_command_distinguishes_ready_from_not_ready_and_says_why() {
        let readiness = Readiness::new([]);
        let watches = readiness.condition("watches", "not synced with the store yet", &[]);
        let leader = readiness.condition("leader", "no controller leads", &[]);
        let listener = bind("--http-listen", "127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.address();
        let registry = Arc::new(Registry::default());
        tokio::spawn(serve_http(listener, registry, readiness.clone(), Shutdown::new()));

        let why = checked_off_thread(address).await.unwrap_err();
        assert_eq!(why, "not ready: leader: no controller leads; watches: not synced with the store yet");
        watches.set(Ok(()));
        leader.set(Ok(()));
        assert_eq!(checked_off_thread(address).await, Ok(()));
        // A process that listens on all addresses is asked on loopback.
        let everywhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
        assert_eq!(checked_off_thread(everywhere).await, Ok(()));
    }

    #[test]
    fn another_program_at_the_address_is_not_ready() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let other = std::thread::spawn(move || {
            let (mut caller, _) = listener.accept().unwrap();
            // Read to the end: closing a connection with unread data resets it.
            let request = BufReader::new(&caller).lines().map(Result::unwrap);
            assert_ne!(request.take_while(|line| !line.is_empty()).count(), 0);
            caller.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
        });
        let error = check(address).unwrap_err().to_string();
        assert_eq!(error, format!("{address} is not a Muster process: it answered \"SSH-2.0-OpenSSH_9.2\""));
        other.join().unwrap();
        // A port on which no process listens.
        let error = check("127.0.0.1:1".parse().unwrap()).unwrap_err().to_string();
        assert!(error.starts_with("no answer from 127.0.0.1:1: "), "{error}");
        assert!(matches!(check("127.0.0.1:0".parse().unwrap()), Err(HealthError::UnknownPort)));
    }

    #[test]
    fn the_command_takes_the_address_of_the_process_and_no_other_flag() {
        let parsed = command::<Flags>().try_get_matches_from(["muster-part"]).unwrap();
        let address = parsed.get_one::<SocketAddr>(HTTP_LISTEN).unwrap();
        assert_eq!(*address, "127.0.0.1:7401".parse().unwrap());
        assert!(command::<Flags>().try_get_matches_from(["muster-part", "--store=a"]).is_err());
        let arguments = ["muster-part", "--store=health"].map(OsString::from);
        assert!(run::<Flags>(arguments).is_none(), "only the first argument selects the command");
    }
}
