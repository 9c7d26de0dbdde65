"""Talks to the endpoint in argv[1] as an application does, with OpenAI's own client, and prints what
it got as one line of JSON. The assertions are in e2e_openai.rs."""

import json
import sys

try:
    import openai
except ImportError:
    sys.exit(f"the Python package openai is missing for {sys.executable}: run `make tools`")

MESSAGES = [
    {"role": "system", "content": "You answer in one sentence."},
    {"role": "user", "content": "Why is the sky blue?"},
]


def usage(reported):
    return {"prompt": reported.prompt_tokens, "completion": reported.completion_tokens, "total": reported.total_tokens}


def whole(client):
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=7)
    choice = answer.choices[0]
    return {
        "object": answer.object,
        "model": answer.model,
        "role": choice.message.role,
        "content": choice.message.content,
        "finish_reason": choice.finish_reason,
        "usage": usage(answer.usage),
    }


def streamed(client):
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=7, stream=True, stream_options={"include_usage": True}
    )
    content, finish_reason, reported, chunks = "", None, None, 0
    for chunk in stream:
        chunks += 1
        reported = chunk.usage or reported
        for choice in chunk.choices:
            content += choice.delta.content or ""
            finish_reason = choice.finish_reason or finish_reason
    return {"content": content, "finish_reason": finish_reason, "usage": usage(reported), "several_chunks": chunks > 2}


def unknown_model(client):
    try:
        client.chat.completions.create(model="nobody", messages=MESSAGES)
    except openai.NotFoundError as error:
        return {"status": error.status_code, "message": error.body["message"], "type": error.type}
    return None


def error_in_stream(client):
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=7, stream=True, extra_headers={"x-mock-fault": "error-in-stream=500"}
    )
    try:
        for _ in stream:
            pass
    except openai.APIError as error:
        return {"code": error.body["code"], "kind": type(error).__name__}
    return None


def decision(client):
    raw = client.chat.completions.with_raw_response.create(model="tiny", messages=MESSAGES, max_tokens=1)
    return raw.headers["x-warmroute-decision"]


def main():
    # A retry of the client's own would hide a fault.
    client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0, timeout=30)
    print(
        json.dumps(
            {
                "models": [model.id for model in client.models.list()],
                "whole": whole(client),
                "streamed": streamed(client),
                "unknown_model": unknown_model(client),
                "error_in_stream": error_in_stream(client),
                "decision": decision(client),
            }
        )
    )


if __name__ == "__main__":
    main()
