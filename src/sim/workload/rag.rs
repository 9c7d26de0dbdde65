//! Questions about documents: few documents are asked about often, many seldom.
//!
//! Retrieval-augmented generation and assistants over a fixed set of documents. Popularity goes by
//! Zipf's law, as requests for documents on the Web do (Breslau and others, "Web Caching and
//! Zipf-like Distributions", INFOCOM 1999). The lengths are assumptions. The user's message is the
//! document and then the question; the session is the document.

use super::draw::{Draw, Poisson, Zipf};
use super::{Request, Role, Segment, Start, Workload};

/// How many documents, how long, how popular.
#[derive(Clone, Debug)]
pub struct Options {
    /// Requests in all.
    pub requests: u32,
    /// Mean requests per second (Poisson).
    pub rate_per_s: f64,
    /// Number of documents.
    pub documents: u32,
    /// Length of each.
    pub document_tokens: u32,
    /// Exponent of Zipf's law; 0 for all alike.
    pub zipf: f64,
    /// Instruction that all requests begin with; 0 for none.
    pub system_tokens: u32,
    /// Mean length of an output; uniform within a third of it.
    pub output_tokens: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            requests: 2_000,
            rate_per_s: 4.0,
            documents: 200,
            document_tokens: 8_000,
            zipf: 1.0,
            system_tokens: 50,
            output_tokens: 150,
        }
    }
}

const QUESTION_TOKENS: (u32, u32) = (50, 100);

/// The requests, in the order of their arrival.
pub fn workload(options: &Options, seed: u64) -> Workload {
    let mut draw = Draw::new(seed, "rag");
    let system = segment(draw.id(), options.system_tokens, Role::System);
    let documents: Vec<u64> = (0..options.documents.max(1)).map(|_| draw.id()).collect();
    let popularity = Zipf::new(options.documents.max(1), options.zipf);
    let mut arrivals = Poisson::new(options.rate_per_s);
    let third = options.output_tokens / 3;
    let request = |_| {
        let at_us = arrivals.next_us(&mut draw);
        let rank = popularity.rank(&mut draw);
        let document = documents.get(rank).copied().unwrap_or_default();
        let question_tokens = draw.between(QUESTION_TOKENS.0, QUESTION_TOKENS.1);
        let prompt = [
            system,
            segment(document, options.document_tokens, Role::User),
            segment(draw.id(), question_tokens, Role::User),
        ];
        let request = Request {
            start: Start::At { us: at_us },
            session: document,
            adapter: None,
            prompt: prompt
                .into_iter()
                .filter(|segment| segment.tokens > 0)
                .collect(),
            output_tokens: draw
                .between(options.output_tokens - third, options.output_tokens + third)
                .max(1),
        };
        (at_us, request)
    };
    let requests = (0..options.requests).map(request).collect();
    let about = format!(
        "Questions about {} documents of {} tokens, popular by Zipf's law with exponent {}, {} requests/s",
        options.documents, options.document_tokens, options.zipf, options.rate_per_s
    );
    Workload::of_arrivals("rag".to_owned(), about, requests)
}

fn segment(id: u64, tokens: u32, role: Role) -> Segment {
    Segment { id, tokens, role }
}
