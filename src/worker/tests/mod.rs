//! Workers on a host that writes down what it is told.

mod clock;
mod engines;
mod finder;
mod streams;
mod waiting;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::rc::Rc;

use super::*;
use crate::endpoint::{Endpoint, EndpointId};
use crate::metrics::{Meter, MetricKind};
use crate::policy::Load;
use crate::session::Rest;
use crate::state::memory::MemoryStore;
use crate::state::{Store, StoreError, Version};

/// The host of one worker.
#[derive(Clone, Default)]
pub(super) struct Fake(Rc<Inner>);

#[derive(Default)]
pub(super) struct Inner {
    pub(super) now_ns: Cell<u64>,
    /// It takes no destination and asks nobody.
    pub(super) refuses: Cell<bool>,
    /// A stream that it does not know any more.
    gone: Cell<Option<u32>>,
    /// What it was told of streams.
    pub(super) done: RefCell<Vec<String>>,
    /// Its log.
    lines: RefCell<Vec<String>>,
    /// What it was to ask, by token.
    asked: RefCell<Vec<String>>,
    /// What was read of buffers: from where, and how much.
    read: RefCell<Vec<(Buffer, usize, usize)>>,
    headers: RefCell<BTreeMap<(Headers, String), Vec<u8>>>,
    properties: RefCell<BTreeMap<String, Vec<u8>>>,
    buffers: RefCell<BTreeMap<Buffer, Vec<u8>>>,
    /// All workers of one Envoy have the same.
    store: Rc<MemoryStore>,
    metrics: RefCell<Vec<(String, u64)>>,
}

impl Deref for Fake {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Fake {
    /// The host of another worker of the same Envoy.
    fn twin(&self) -> Self {
        let twin = Inner {
            store: self.store.clone(),
            ..Inner::default()
        };
        twin.now_ns.set(self.now_ns.get());
        Self(Rc::new(twin))
    }

    pub(super) fn header_is(&self, map: Headers, name: &str, value: &str) {
        let mut headers = self.headers.borrow_mut();
        headers.insert((map, name.into()), value.into());
    }

    pub(super) fn property_is(&self, path: &str, value: &[u8]) {
        let mut properties = self.properties.borrow_mut();
        properties.insert(path.into(), value.into());
    }

    fn buffer_is(&self, kind: Buffer, bytes: &[u8]) {
        self.buffers.borrow_mut().insert(kind, bytes.into());
    }

    fn metric(&self, name: &str) -> u64 {
        let metrics = self.metrics.borrow();
        let known = metrics.iter().find(|(known, _)| known == name);
        known.map_or(0, |(_, value)| *value)
    }

    fn tell(&self, line: String) {
        self.done.borrow_mut().push(line);
    }
}

impl Meter for Fake {
    fn define(&self, _: MetricKind, name: &str) -> Option<u32> {
        let mut metrics = self.metrics.borrow_mut();
        metrics.push((name.into(), 0));
        u32::try_from(metrics.len() - 1).ok()
    }

    fn increment(&self, id: u32, by: u64) {
        self.metrics.borrow_mut()[id as usize].1 += by;
    }

    fn record(&self, id: u32, value: u64) {
        self.metrics.borrow_mut()[id as usize].1 = value;
    }
}

impl Store for Fake {
    fn get(&self, key: &str) -> Option<(Vec<u8>, Version)> {
        self.store.get(key)
    }

    fn replace(&self, key: &str, value: &[u8], expected: Version) -> Result<(), StoreError> {
        self.store.replace(key, value, expected)
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.store.put(key, value)
    }
}

impl Host for Fake {
    fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    fn error(&self, line: &str) {
        self.lines.borrow_mut().push(format!("error: {line}"));
    }

    fn info(&self, line: &str) {
        self.lines.borrow_mut().push(format!("info: {line}"));
    }

    fn buffer(&self, kind: Buffer, start: usize, length: usize) -> Option<Vec<u8>> {
        self.read.borrow_mut().push((kind, start, length));
        let buffers = self.buffers.borrow();
        let bytes = buffers.get(&kind)?.get(start..)?;
        Some(bytes[..length.min(bytes.len())].to_vec())
    }

    fn header(&self, map: Headers, name: &str) -> Option<Vec<u8>> {
        self.headers.borrow().get(&(map, name.into())).cloned()
    }

    fn set_header(&self, map: Headers, name: &str, value: &str) -> bool {
        self.tell(format!("set {map:?} {name}: {value}"));
        !self.refuses.get()
    }

    fn remove_header(&self, map: Headers, name: &str) {
        self.tell(format!("remove {map:?} {name}"));
    }

    fn property(&self, path: &str) -> Option<Vec<u8>> {
        self.properties.borrow().get(path).cloned()
    }

    fn set_property(&self, path: &str, value: &str) {
        self.tell(format!("property {path}: {value}"));
    }

    fn set_filter_state(&self, path: &str, value: &str) -> bool {
        self.tell(format!("filter state {path}: {value}"));
        !self.refuses.get()
    }

    fn reply(&self, status: u16, details: &str, headers: &[(&str, &str)], body: &str) {
        self.tell(format!(
            "reply {status} {details} [{}] {body}",
            list(headers)
        ));
    }

    fn resume_request(&self) {
        self.tell("resume".into());
    }

    fn set_effective_context(&self, context: u32) -> bool {
        self.tell(format!("context {context}"));
        self.gone.get() != Some(context)
    }

    fn ask(
        &self,
        cluster: &str,
        headers: Vec<(&str, &str)>,
        timeout_ms: u64,
    ) -> Result<u32, String> {
        if self.refuses.get() {
            return Err("BadArgument".into());
        }
        let mut asked = self.asked.borrow_mut();
        asked.push(format!("{cluster} {timeout_ms} ms [{}]", list(&headers)));
        u32::try_from(asked.len() - 1).map_err(|error| error.to_string())
    }
}

fn list(headers: &[(&str, &str)]) -> String {
    let headers = headers.iter();
    let headers: Vec<String> = headers
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    headers.join(", ")
}

/// The host's number of the plugin.
const PLUGIN: u32 = 1;
const ONE: &str = "10.0.0.1:80";

fn started(fake: &Fake, json: &str) -> Worker<Fake> {
    if fake.now_ns.get() == 0 {
        fake.now_ns.set(1_000_000_000_000);
    }
    fake.buffer_is(Buffer::PluginConfiguration, json.as_bytes());
    let worker = Worker::configured(fake.clone(), PLUGIN, json.len()).unwrap();
    fake.read.take();
    worker
}

/// A worker whose pool is one endpoint.
fn one(fake: &Fake, rest: &str) -> Worker<Fake> {
    let json = format!(r#"{{"endpoints": [{{"address": "{ONE}"}}]{rest}}}"#);
    started(fake, &json)
}

impl Worker<Fake> {
    fn tick_after(&mut self, ms: u64) {
        let now_ns = &self.vm.host.now_ns;
        now_ns.set(now_ns.get() + ms * 1_000_000);
        self.tick();
    }

    /// An answer with this status and body.
    fn answer(&mut self, token: u32, status: u16, body: &[u8]) {
        let host = &self.vm.host;
        host.header_is(Headers::Callout, ":status", &status.to_string());
        host.buffer_is(Buffer::CalloutBody, body);
        self.answered(token, 1, body.len());
    }

    fn in_flight(&self) -> Load {
        let totals = self.vm.balancer.totals(&self.vm.host);
        totals
            .values()
            .fold(Load::default(), |sum, load| sum.plus(*load))
    }
}

fn id(address: &str) -> EndpointId {
    Endpoint::new(address.parse().unwrap()).id()
}
