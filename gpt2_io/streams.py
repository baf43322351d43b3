"""Text on its way out: as its tokens come in, and as results are printed."""
import json
import sys


def print_texts(prompts, ids, texts, as_json=False):
    """Print results on stdout: one text alone, several each behind its prompt, or one JSON object a line.

    ids: the new ids of each prompt; texts: the continuations. JSON: {"prompt", "ids", "text"}.
    """
    show_everything(sys.stdout)
    if as_json:
        for prompt, new_ids, text in zip(prompts, ids, texts):
            print(json.dumps({"prompt": prompt, "ids": [int(i) for i in new_ids], "text": text}))
    elif len(prompts) == 1:
        print(texts[0])
    else:
        print("\n\n".join(prompt + text for prompt, text in zip(prompts, texts)))


def show_everything(stream):
    """Let a stream that lacks a character (a Windows console, LC_ALL=C) show its number instead of failing."""
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")


class TextStream:
    """The text of one continuation while its tokens come in: whole characters only, cut before the first stop string.

    text: what is certain by now. What could still become a stop string is held back. stopped: one has come.
    """

    def __init__(self, encoder, stop=()):
        self.stop, self.decode = stop, encoder.text_decoder()
        self.beginnings = {s[:k] for s in stop for k in range(1, len(s))}
        self.text, self.held, self.stopped = "", "", False

    def push(self, token_id):
        """The next token -> the text that has become certain by it."""
        return self.add(self.decode([token_id]))

    def end(self):
        """No more tokens -> the rest of the text, with U+FFFD for a character that was cut in two."""
        return self.add(self.decode([], final=True), last=True)

    def add(self, text, last=False):
        held = self.held + text
        found = [i for i in map(held.find, self.stop) if i >= 0]
        if found:  # it stays in what is held, so that nothing comes after it
            self.stopped, n = True, min(found)
        elif last:
            n = len(held)
        else:  # the longest end of the text with which a stop string begins has to wait
            n = next((i for i in range(len(held)) if held[i:] in self.beginnings), len(held))
        certain, self.held = held[:n], held[n:]
        self.text += certain
        return certain
