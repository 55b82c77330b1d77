use super::*;
use std::io::Write;

#[derive(Debug, PartialEq, Parser)]
#[command(name = "muster-test", version = "1")]
struct Settings {
    #[arg(long)]
    data_dir: PathBuf,
    #[arg(long, default_value_t = 7)]
    workers: u16,
    #[arg(long, default_value = "1s", value_parser = parse_duration)]
    period: Duration,
    #[arg(long)]
    ratio: Option<f64>,
    #[arg(long, conflicts_with = "ratio")]
    insecure: bool,
    #[arg(long, value_delimiter = ',')]
    store: Vec<String>,
    #[arg(long)]
    zones: Option<String>,
    // Cargo sets this variable for every test, so the test need not set one.
    #[arg(long, env = "CARGO_PKG_NAME", default_value = "default")]
    package: String,
}

/// The settings from a file with this text and these flags.
fn read(file: &str, flags: &[&str]) -> Result<Settings, String> {
    let mut config = tempfile::NamedTempFile::new().unwrap();
    config.write_all(file.as_bytes()).unwrap();
    let path = config.path().to_str().unwrap().to_owned();
    let args = ["muster-test", "--config", &path].into_iter().chain(flags.iter().copied());
    parse_with_config(args).map_err(|error| error.to_string().replace(&path, "FILE"))
}

#[test]
fn the_file_sets_what_the_flags_do_not() {
    let file = r#"
        data-dir = "/var/lib/muster"
        workers = 3
        period = "250ms"
        ratio = 0.5
        insecure = true
        store = ["http://a:7400", "http://b:7400"]
        zones = ["z1", "z2"]
        package = "from the file"
    "#;
    let settings = read(file, &[]).unwrap();
    assert_eq!(
        settings,
        Settings {
            data_dir: "/var/lib/muster".into(),
            workers: 3,
            period: Duration::from_millis(250),
            ratio: Some(0.5),
            insecure: true,
            store: vec!["http://a:7400".to_owned(), "http://b:7400".to_owned()],
            zones: Some("z1,z2".to_owned()),
            package: "muster-rpc".to_owned(),
        },
        "everything from the file, but the environment wins over it"
    );
}

#[test]
fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
    for (file, flags, workers) in [
        ("", vec!["--data-dir=d"], 7),
        ("workers = 3", vec!["--data-dir=d"], 3),
        ("workers = 3", vec!["--data-dir=d", "--workers=9"], 9),
        ("data-dir = 'd'", vec!["--workers=9"], 9),
    ] {
        assert_eq!(read(file, &flags).unwrap().workers, workers, "{file:?} {flags:?}");
    }
    let settings =
        read("store = 'http://a'\ninsecure = false", &["--data-dir=d", "--store=http://b"]).unwrap();
    assert_eq!((settings.store, settings.insecure), (vec!["http://b".to_owned()], false));
    let package = read("package = 'file'", &["--data-dir=d", "--package=flag"]).unwrap().package;
    assert_eq!(package, "flag");
}

#[test]
fn an_invalid_file_is_reported_with_its_key() {
    for (file, expected) in [
        ("wokers = 3", "FILE: unknown key `wokers`"),
        ("data_dir = 'd'", "FILE: unknown key `data_dir`"),
        ("config = 'other'", "FILE: unknown key `config`"),
        ("help = true", "FILE: unknown key `help`"),
        ("workers = 'many'", "FILE: key `workers`: invalid value 'many'"),
        ("workers = -1", "FILE: key `workers`: invalid value '-1'"),
        ("workers = 70000", "FILE: key `workers`: invalid value '70000'"),
        ("workers = [1, 2]", "FILE: key `workers`: invalid value '1,2'"),
        ("period = 5", "FILE: key `period`: invalid value '5'"),
        ("insecure = 'yes'", "FILE: key `insecure`: expected true or false"),
        ("insecure = 1", "FILE: key `insecure`: expected true or false"),
        ("[workers]\ncount = 3", "FILE: key `workers`: expected text, a number, true or false, found table"),
        ("store = [['a']]", "FILE: key `store`: expected text, a number, true or false, found array"),
        ("workers = ", "FILE: "),
    ] {
        let error = read(file, &["--data-dir=d", "--workers=9"]).unwrap_err();
        assert!(error.contains(expected), "{file:?}: {error}");
    }
    let absent = parse_with_config::<Settings>(["muster-test", "--config=/nowhere/muster.toml"]).unwrap_err();
    assert!(absent.to_string().contains("/nowhere/muster.toml"), "{absent}");
}

#[test]
fn without_a_file_the_flags_are_plain_clap() {
    let settings: Settings = parse_with_config(["muster-test", "--data-dir", "d"]).unwrap();
    assert_eq!(settings.workers, 7);
    for (args, kind) in [
        (vec!["muster-test"], ErrorKind::MissingRequiredArgument),
        (vec!["muster-test", "--data-dir=d", "--unknown"], ErrorKind::UnknownArgument),
        (vec!["muster-test", "--help"], ErrorKind::DisplayHelp),
        (vec!["muster-test", "--version"], ErrorKind::DisplayVersion),
    ] {
        let error = parse_with_config::<Settings>(args.clone()).unwrap_err();
        assert_eq!(error.kind(), kind, "{args:?}");
    }
}

#[test]
fn durations_are_read_as_people_write_them() {
    for (text, expected) in [
        ("40s", Some(Duration::from_secs(40))),
        ("100ms", Some(Duration::from_millis(100))),
        ("1m30s", Some(Duration::from_secs(90))),
        ("5m0s", Some(Duration::from_secs(300))),
        ("2h", Some(Duration::from_secs(7_200))),
        ("1.5s", Some(Duration::from_millis(1_500))),
        ("0", Some(Duration::ZERO)),
        ("0s", Some(Duration::ZERO)),
        ("-1s", None),
        ("5", None),
        ("soon", None),
        ("", None),
    ] {
        assert_eq!(parse_duration(text).ok(), expected, "{text:?}");
    }
}
