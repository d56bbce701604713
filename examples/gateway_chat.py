"""A chat in the terminal through the gateway, with the standard library only: python examples/gateway_chat.py MODEL

Start a model server and the gateway first:

    holdfast --url gateway.db gateway --upstream http://127.0.0.1:11434

Stop the gateway in the middle of an answer and start it again: a question that was not answered is sent again, with
the header by which the gateway recognizes a retry, and joins the job that it stored.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request

ADDRESS = os.environ.get("OLLAMA_HOST", "http://127.0.0.1:11435")
TRIES = 10


def ask(model: str, messages: list[dict[str, str]], retry: int) -> str:
    """Send the conversation and print the answer as it arrives."""
    request = urllib.request.Request(
        f"{ADDRESS}/api/chat",
        json.dumps({"model": model, "messages": messages}).encode(),
        {"Content-Type": "application/json", "x-stainless-retry-count": str(retry)},
    )
    answer = ""
    with urllib.request.urlopen(request) as response:
        for line in response:
            part = json.loads(line)
            if "error" in part:
                raise ConnectionError(part["error"])
            answer += str(part["message"]["content"])
            print(part["message"]["content"], end="", flush=True)
            if part["done"]:
                # This line is sent after the answer was stored.
                print(f"   [job {response.headers['Holdfast-Job']}]", file=sys.stderr)
                return answer
    raise ConnectionError("the answer is not complete")


def chat(model: str) -> None:
    """Read questions until the end of the input."""
    messages: list[dict[str, str]] = []
    while question := (input("> ") if sys.stdin.isatty() else sys.stdin.readline()).strip():
        messages.append({"role": "user", "content": question})
        for retry in range(TRIES):
            try:
                answer = ask(model, messages, retry)
            except urllib.error.HTTPError as error:
                if error.code != 503:
                    sys.exit(f"{error.code}: {error.read().decode()}")
            except OSError as error:
                print(f"\n[{error}; trying again]", file=sys.stderr)
            else:
                messages.append({"role": "assistant", "content": answer})
                print()
                break
            time.sleep(0.5)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python gateway_chat.py MODEL")
    chat(sys.argv[1])
