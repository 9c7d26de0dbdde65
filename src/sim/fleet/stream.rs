//! One request's way through a gateway: the inputs that Envoy would give to its session.

use super::gateway::{EPOCH_US, Gateway};
use super::options::Reading;
use crate::prefix::PromptDigest;
use crate::request::{Api, InferenceRequest, Scan};
use crate::session::{Input, Rest, Session, StreamView};
use crate::sim::record::Served;
use crate::sim::workload::text::chat_body;
use crate::sim::workload::{Request, Role, mix};
use crate::steer::Steer;

/// Text that a token stands for, in the model and in the texts that replays are made of.
const BYTES_PER_TOKEN: u64 = 4;
const FIRST_CHUNK: &[u8] = b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
const REFUSAL: &[u8] = b"{\"error\":{\"message\":\"too long\",\"code\":400}}";

pub(super) struct Stream {
    pub(super) gateway: usize,
    worker: usize,
    session: Session,
    session_id: u64,
}

impl Stream {
    pub(super) fn new(request: &Request, gateway: usize, worker: usize) -> Self {
        Self {
            gateway,
            worker,
            session: Session::default(),
            session_id: request.session,
        }
    }

    /// Gives the request to the gateway; the address that it is sent to.
    pub(super) fn ask(
        &mut self,
        gateway: &mut Gateway,
        now_us: u64,
        random: u64,
        request: &Request,
        reading: Reading,
    ) -> Option<String> {
        let read = match reading {
            Reading::Numbers => as_scanned(request),
            Reading::Bodies => gateway.scan(self.worker, &chat_body(request, Reading::MODEL)),
        };
        let view = self.view(now_us, None);
        let input = Input::Request(&read);
        let effects = gateway.handle(self.worker, &mut self.session, random, &view, input);
        match effects.steer? {
            Steer::Header { value, .. }
            | Steer::Headers { first: value, .. }
            | Steer::FilterState { value } => Some(value),
        }
    }

    pub(super) fn first_token(&mut self, gateway: &mut Gateway, now_us: u64) {
        self.tell(gateway, now_us, 200, Input::ResponseHeaders(Rest::Open));
        let chunk = Input::ResponseBody(FIRST_CHUNK, Rest::Open);
        self.tell(gateway, now_us, 200, chunk);
    }

    pub(super) fn finish(&mut self, gateway: &mut Gateway, now_us: u64, served: &Served) {
        let usage = format!(
            "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":{},\"completion_tokens\":{},\
             \"prompt_tokens_details\":{{\"cached_tokens\":{}}}}}}}\n\ndata: [DONE]\n\n",
            served.prompt_tokens, served.output_tokens, served.cached_tokens
        );
        let chunk = Input::ResponseBody(usage.as_bytes(), Rest::Open);
        self.tell(gateway, now_us, 200, chunk);
        self.close(gateway, now_us, 200);
    }

    /// The engine answers that the request is too long.
    pub(super) fn refuse(&mut self, gateway: &mut Gateway, now_us: u64) {
        self.tell(gateway, now_us, 400, Input::ResponseHeaders(Rest::Open));
        let chunk = Input::ResponseBody(REFUSAL, Rest::Open);
        self.tell(gateway, now_us, 400, chunk);
        self.close(gateway, now_us, 400);
    }

    fn close(&mut self, gateway: &mut Gateway, now_us: u64, status: u16) {
        let end = Input::ResponseBody(&[], Rest::End);
        self.tell(gateway, now_us, status, end);
        self.tell(gateway, now_us, status, Input::Closed);
    }

    fn tell(&mut self, gateway: &mut Gateway, now_us: u64, status: u16, input: Input<'_>) {
        let view = self.view(now_us, Some(status));
        gateway.handle(self.worker, &mut self.session, 0, &view, input);
    }

    fn view(&self, now_us: u64, status: Option<u16>) -> View {
        View {
            now_us: EPOCH_US + now_us,
            session_id: self.session_id,
            status,
        }
    }
}

/// The request as the scanner reads the chat body that a replay makes of it.
fn as_scanned(request: &Request) -> InferenceRequest {
    let adapter = request.adapter.map(|adapter| format!("lora-{adapter}"));
    let first_user = request
        .prompt
        .iter()
        .position(|segment| segment.role == Role::User);
    let beginning = request
        .prompt
        .iter()
        .take(first_user.map_or(usize::MAX, |at| at + 1));
    let prompt = PromptDigest {
        text_bytes: u64::from(request.prompt_tokens()) * BYTES_PER_TOKEN,
        items: 1,
        blocks: request.chain(64),
        routing: Some(beginning.fold(0, |hash, segment| mix(hash, segment.id))),
        ..PromptDigest::default()
    };
    InferenceRequest {
        model: Some(adapter.unwrap_or_else(|| "base".to_owned())),
        stream: true,
        max_output_tokens: Some(request.output_tokens),
        prompt,
        ..InferenceRequest::unknown(Api::ChatCompletions, Scan::Complete)
    }
}

struct View {
    now_us: u64,
    session_id: u64,
    status: Option<u16>,
}

impl StreamView for View {
    fn now_us(&self) -> u64 {
        self.now_us
    }

    fn request_header(&self, name: &str) -> Option<Vec<u8>> {
        (name == "x-session-id").then(|| self.session_id.to_string().into_bytes())
    }

    fn response_status(&self) -> Option<u16> {
        self.status
    }

    fn response_header(&self, _: &str) -> Option<Vec<u8>> {
        None
    }

    fn upstream_address(&self) -> Option<Vec<u8>> {
        None
    }

    fn attempts(&self) -> Option<u64> {
        Some(1)
    }

    fn response_details(&self) -> Option<Vec<u8>> {
        Some(b"via_upstream".to_vec())
    }
}
