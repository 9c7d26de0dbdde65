//! An admin interface that says what the test wants, or misbehaves.

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;

/// What it does when it is asked.
#[derive(Clone, Debug)]
pub enum Behaviour {
    /// Answers with this status, and the right body.
    Status(u16),
    /// Answers with this body.
    Body(String),
    /// Ends the connection in the middle of the right body.
    Cut,
    /// Says nothing.
    Silent,
    /// Closes the connection without an answer.
    Hangup,
}

#[derive(Debug)]
struct State {
    members: Vec<SocketAddr>,
    /// What the next answer says in place of `members`.
    once: Option<Vec<SocketAddr>>,
    /// Other clusters, each with a comma behind it.
    others: String,
    behaviour: Option<Behaviour>,
}

/// The interface; clones are the same one.
#[derive(Clone, Debug)]
pub struct Admin {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Admin {
    /// Starts it; at first there are no members.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State {
            members: Vec::new(),
            once: None,
            others: String::new(),
            behaviour: None,
        }));
        let admin = Self { address, state };
        let serving = admin.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let admin = serving.clone();
                let service = service_fn(move |request| answer(admin.clone(), request));
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
        admin
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Misbehaves from now on.
    pub fn set(&self, behaviour: Behaviour) {
        self.state.lock().unwrap().behaviour = Some(behaviour);
    }

    /// Behaves from now on, and says that these are the members.
    pub fn tells(&self, members: &[SocketAddr]) {
        let mut state = self.state.lock().unwrap();
        state.behaviour = None;
        state.members = members.to_vec();
    }

    /// From now on there are so many other clusters; says how many bytes that is.
    pub fn has_others(&self, others: usize) -> usize {
        // As large as Envoy writes them, with its counters.
        let stats: Vec<Value> = (0..9)
            .map(|_| json!({"value": "3", "name": "rq_total"}))
            .collect();
        let socket = json!({"socket_address": {"address": "10.0.0.1", "port_value": 80}});
        let host = json!({ "address": socket, "stats": stats });
        let other = |at: usize| {
            let name = format!("outbound|{at}||service.default.svc.cluster.local");
            let cluster = json!({"name": name, "host_statuses": [host, host]});
            serde_json::to_string_pretty(&cluster).unwrap() + ","
        };
        let text: String = (0..others).map(other).collect();
        let bytes = text.len();
        self.state.lock().unwrap().others = text;
        bytes
    }

    /// Says once that these are the members, and returns when it has.
    pub async fn tells_once(&self, members: &[SocketAddr]) {
        self.state.lock().unwrap().once = Some(members.to_vec());
        let is_due = || self.state.lock().unwrap().once.is_some();
        while is_due() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn page(&self) -> String {
        let mut state = self.state.lock().unwrap();
        let members = state.once.take().unwrap_or_else(|| state.members.clone());
        let host = |address: &SocketAddr| {
            let socket = json!({"address": address.ip().to_string(), "port_value": address.port()});
            json!({"address": {"socket_address": socket}, "health_status": {"eds_health_status": "HEALTHY"}})
        };
        let hosts: Vec<Value> = members.iter().map(host).collect();
        let ours = json!({"name": "vllm_endpoints", "host_statuses": hosts});
        let others = &state.others;
        format!(r#"{{"cluster_statuses": [{others}{ours},{{"name": "vllm"}}]}}"#)
    }
}

type Body = BoxBody<Bytes, std::io::Error>;

fn whole(text: String) -> Body {
    Full::new(Bytes::from(text))
        .map_err(|never: Infallible| match never {})
        .boxed()
}

async fn answer(
    admin: Admin,
    request: Request<Incoming>,
) -> Result<Response<Body>, std::io::Error> {
    assert!(request.uri().path() == "/clusters", "{}", request.uri());
    let behaviour = admin.state.lock().unwrap().behaviour.clone();
    let broken = || std::io::Error::other("cut");
    let mut response = Response::new(whole(admin.page()));
    match behaviour {
        None => {}
        Some(Behaviour::Status(status)) => {
            *response.status_mut() = status.try_into().unwrap();
        }
        Some(Behaviour::Body(text)) => *response.body_mut() = whole(text),
        Some(Behaviour::Cut) => {
            let page = admin.page();
            let half = Bytes::from(page[..page.len() / 2].to_owned());
            let frames = [Ok(hyper::body::Frame::data(half)), Err(broken())];
            let stream = futures_util::stream::iter(frames);
            *response.body_mut() = BodyExt::boxed(http_body_util::StreamBody::new(stream));
        }
        Some(Behaviour::Silent) => std::future::pending().await,
        Some(Behaviour::Hangup) => return Err(broken()),
    }
    Ok(response)
}
