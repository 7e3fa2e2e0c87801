//! The live page of the agent in a real browser, while it traces programs on the simulated driver.
//! `fixtures/page/live.py` has one function per test.

use crate::harness::agent::Agent;
use crate::harness::environment::secret;
use crate::harness::files::{fixture, root};
use crate::harness::{TestEnv, compile, recorded_agent, simulator};

/// Of `fixtures/page/live.py`.
const HOSTILE: &str = "<script>alert(1)<!--";
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// An environment whose devices exist: a first process creates them.
fn shared() -> TestEnv {
    let env = TestEnv::new().sharing();
    let env = env.env("SIM_CONTEXT_OVERHEAD", "100M").env("SIM_MEMORY", "16G");
    env.workload(&["hold", "--count", "1", "--size", "4096", "--wait-ms", "1"]).finish();
    env
}

/// Runs a function of the script in the environment of `tools/python-env`.
fn drive(scenario: &str, env: &TestEnv, agent: &Agent) {
    drive_at(scenario, env, &agent.address, &|| agent.messages());
}

fn drive_at(scenario: &str, env: &TestEnv, address: &str, messages: &dyn Fn() -> String) {
    let python = root().join("target/python/bin/python");
    assert!(python.exists(), "{} not found: run tools/python-env", python.display());
    let mut command = env.command(python);
    command.arg("-B").arg(fixture("page/live.py")).args([scenario, address]);
    command.arg(simulator().join("workload")).arg(env.dir.path());
    let output = command.output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{scenario}: {message}\n{}", messages());
}

/// An agent watches five PyTorch programs of an H200, two of which leak. Each element of the page
/// has room on a desktop and on a phone.
#[test]
fn live_page_has_room_for_programs_of_an_h200() {
    let env = TestEnv::new();
    let recording = fixture("h200-leaks/pytorch.arrows");
    let address = recorded_agent::start(recording.as_ref(), &env.dir.path().join("state"));
    drive_at("recorded", &env, &address, &String::new);
    if std::env::var_os("VRAMSCOPE_UPDATE").is_some() {
        for name in ["live-page.png", "live-page-phone.png"] {
            let image = root().join("docs/images").join(name);
            std::fs::copy(env.dir.path().join(name), image).unwrap();
        }
    }
}

#[test]
fn live_page_shows_leaks_and_incidents_as_they_happen() {
    let env = shared();
    let agent = Agent::start_with(&env, "[http]\nshow_paths = true\n", &[]);
    // Load while the page is used.
    let _busy = env.workload(&["spam", "--throughput", "2000", "--duration", "300"]);
    drive("updates", &env, &agent);
    agent.end(15);
}

#[test]
fn live_page_fits_a_phone_and_can_be_paused() {
    let env = shared();
    let agent = Agent::start(&env, &[]);
    drive("narrow", &env, &agent);
    agent.end(15);
}

#[test]
fn markup_in_names_is_inert_on_the_live_page() {
    let env = shared();
    let agent = Agent::start(&env, &[]);
    compile("named.c", &env.dir.path().join(HOSTILE), &["-ldl"]);
    drive("hostile", &env, &agent);
    agent.end(15);
}

#[test]
fn live_page_requests_the_token() {
    let env = shared();
    let token = env.dir.path().join("token");
    secret(&token, TOKEN);
    let mut agent = Agent::start(&env, &["--token-file", token.to_str().unwrap()]);
    agent.headers = format!("Authorization: Bearer {TOKEN}\r\n");
    drive("login", &env, &agent);
    agent.end(15);
}

#[test]
fn live_page_loads_nothing_external() {
    let env = shared();
    let agent = Agent::start(&env, &[]);
    let page = agent.get_with("/", "Accept: text/html\r\n");
    assert!(page.head.contains("content-type: text/html"), "{}", page.head);
    let policy = "default-src 'none'; script-src 'sha256-";
    assert!(page.head.contains(policy) && !page.head.contains("unsafe"), "{}", page.head);
    let text = page.text();
    for word in ["http:", "https:", "src=", "@import", "url(", "innerHTML", "eval("] {
        assert!(!text.contains(word), "{word}");
    }
    // Other clients get the list of paths.
    let index = agent.get("/").text();
    assert!(index.contains("/api/v1/stream") && index == agent.get("/api").text(), "{index}");
    agent.end(15);
}
