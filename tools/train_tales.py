"""Train the bundled model: a small GPT-2 on a text file of stories, and write it as a Hugging Face folder.

    pip install -e ".[train]"
    python tools/train_tales.py --data core.txt --out models/tales

The text file holds plain text; a line `<|endoftext|>` separates one story from the next. The run is repeatable on one
machine (fixed seed; the batch of a step depends on nothing but the seed and the step) and resumable: started again with
the same settings it goes on from its checkpoint, and a finished run only writes the folder again. Only --n_steps may be
another one then: the learning rate goes on as if it had been planned for that many. The model card says so.
"""
import json
import math
import os
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path

import fire
import numpy as np
import tokenizers
import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from gpt2_io.safetensors import write_safetensors  # noqa: E402

EOT = "<|endoftext|>"


class Conv1D(nn.Module):
    """A linear layer whose weight is [in, out], as GPT-2's checkpoints store it."""

    def __init__(self, n_in, n_out, std):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_in, n_out) * std)
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, x):
        return F.linear(x, self.weight.T, self.bias)


class Block(nn.Module):
    def __init__(self, n_embd, n_head, n_layer):
        super().__init__()
        self.n_head = n_head
        residual_std = 0.02 / math.sqrt(2 * n_layer)  # GPT-2 paper, section 2.3
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        c_attn, attn_c_proj = Conv1D(n_embd, 3 * n_embd, 0.02), Conv1D(n_embd, n_embd, residual_std)
        c_fc, mlp_c_proj = Conv1D(n_embd, 4 * n_embd, 0.02), Conv1D(4 * n_embd, n_embd, residual_std)
        self.attn = nn.ModuleDict({"c_attn": c_attn, "c_proj": attn_c_proj})
        self.mlp = nn.ModuleDict({"c_fc": c_fc, "c_proj": mlp_c_proj})

    def forward(self, x):
        B, T, n_embd = x.shape
        qkv = self.attn["c_attn"](self.ln_1(x)).view(B, T, 3, self.n_head, n_embd // self.n_head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # 3 of [B, n_head, T, d_head]
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn["c_proj"](a.transpose(1, 2).reshape(B, T, n_embd))
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    """GPT-2 with the parameter names of Hugging Face's checkpoints (`wte.weight`, `h.0.attn.c_attn.weight`, ...)."""

    def __init__(self, n_vocab, n_ctx, n_embd, n_head, n_layer):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(n_vocab, n_embd), nn.Embedding(n_ctx, n_embd)
        nn.init.normal_(self.wte.weight, std=0.02)
        nn.init.normal_(self.wpe.weight, std=0.02)
        self.h = nn.ModuleList(Block(n_embd, n_head, n_layer) for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


def read_stories(path):
    stories = Path(path).read_text(encoding="utf-8").split(EOT)
    return [story.strip() for story in stories if story.strip()]


def split_stories(stories, held_out, seed):
    """Whole stories are held out, so that no sentence of a held-out story was trained on."""
    order = np.random.default_rng(seed).permutation(len(stories))
    n = max(1, round(held_out * len(stories)))
    return [stories[i] for i in sorted(order[n:])], [stories[i] for i in sorted(order[:n])]


def train_tokenizer(stories, n_vocab):
    """Byte-level BPE in GPT-2's order of ids: 256 bytes, the merges as learnt, `<|endoftext|>` last."""
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(stories, vocab_size=n_vocab - 1, min_frequency=2, show_progress=False)
    tokenizer.add_special_tokens([EOT])
    return tokenizer


def to_stream(tokenizer, stories):
    """All stories as one array of ids, each story preceded by `<|endoftext|>`."""
    eot = tokenizer.token_to_id(EOT)
    return np.array([i for story in tokenizer.encode_batch(stories) for i in (eot, *story.ids)], dtype=np.int64)


@torch.no_grad()
def held_out_loss(model, stream, n_ctx, n_bytes):
    """(nats per token, bits per byte) over consecutive windows of n_ctx, each token predicted once.

    The first id (an `<|endoftext|>`) is context only. The bytes are those of the stories alone; the model pays for
    predicting `<|endoftext|>` between them.
    """
    nats = 0.0
    for start in range(0, len(stream) - 1, n_ctx):
        window = torch.from_numpy(stream[start : start + n_ctx + 1])[None]
        nats += F.cross_entropy(model(window[:, :-1])[0].float(), window[0, 1:], reduction="sum").item()
    return nats / (len(stream) - 1), nats / math.log(2) / n_bytes


@torch.no_grad()
def continue_text(model, tokenizer, prompt, n_tokens, n_ctx, temperature, seed):
    ids, generator = tokenizer.encode(prompt).ids, torch.Generator().manual_seed(seed)
    for _ in range(n_tokens):
        logits = model(torch.tensor([ids[-n_ctx:]]))[0, -1].float()
        if temperature == 0:
            ids.append(int(logits.argmax()))
        else:
            ids.append(int(torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=generator)))
    return tokenizer.decode(ids, skip_special_tokens=False)


def learning_rate(step, n_steps, peak, warmup):
    """Linear warm-up, then a cosine down to 5 % of the peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / max(1, n_steps - warmup)
    return peak * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))


def batch_of_step(stream, step, seed, n_tokens, window):
    """[n_tokens / window, window + 1] ids; depends on nothing but its arguments, which makes a run resumable."""
    starts = np.random.default_rng([seed, step]).integers(0, len(stream) - window, n_tokens // window)
    return torch.from_numpy(stream[starts[:, None] + np.arange(window + 1)])


def make_optimizers(model, weight_decay):
    """Muon for the matrices inside the blocks, AdamW for embeddings, biases and layer norms."""
    matrices = [p for p in model.h.parameters() if p.ndim == 2]
    embeddings = [model.wte.weight, model.wpe.weight]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": embeddings, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [
        torch.optim.Muon(matrices, weight_decay=weight_decay, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True),
    ]


CARD = """\
# tales

A small GPT-2 that writes in the manner of old children's stories, made to be shipped with the code that runs it.

| | |
|---|---|
| architecture | GPT-2: n_embd {n_embd}, n_layer {n_layer}, n_head {n_head}, n_ctx {n_ctx}; {n_params:,} parameters |
| weights | model.safetensors, F16 |
| tokenizer | byte-level BPE in GPT-2's order: 256 bytes, {n_merges:,} merges, `<|endoftext|>` = {eot} |
| data | {data_name}: {n_train} stories to train on ({train_bytes:,} bytes, {train_tokens:,} tokens) |
| licence of the data | {data_licence} |
| licence of the weights | MIT, as the code |
| training | {n_steps:,} steps of {batch_tokens:,} tokens = {seen:,} tokens, {minutes:.0f} minutes on 2 busy cores |
| optimiser | Muon for the blocks' matrices, AdamW for the rest; peak rate {peak}, bfloat16 autocast, seed {seed} |
| learning rate | warm-up of {warmup} steps, then a cosine down to 5 %, planned for {planned} |
| held-out loss | **{bits:.3f} bits per byte** ({nats:.3f} nats per token), with these F16 weights |

The held-out loss is that on `held_out.txt`, {n_test} whole stories ({test_bytes:,} bytes) that were not trained on:
consecutive windows of {n_ctx} tokens, each token predicted once, `<|endoftext|>` before each story.

The command:

```
{command}
```

## Two samples, unedited

Greedy, after "Once upon a time":

> {greedy}

Temperature 0.8, seed {seed}, after "The fox said":

> {sampled}

## Limits

It knows little, forgets who is who within a few sentences, and repeats itself when decoded greedily. The stories that
it learnt from are old and carry the attitudes of their time. It is an example, not a product.
"""


def export(model, tokenizer, out, card):
    """Write the Hugging Face folder: config.json, model.safetensors (F16), vocab.json, merges.txt, model card."""
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    n_vocab, n_embd = model.wte.weight.shape
    eot = tokenizer.token_to_id(EOT)
    config = {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": n_vocab,
        "n_positions": len(model.wpe.weight), "n_embd": n_embd, "n_layer": len(model.h), "n_head": model.h[0].n_head,
        "n_inner": None, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "bos_token_id": eot,
        "eos_token_id": eot, "tie_word_embeddings": True, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0,
        "dtype": "float16",
    }
    vocab = dict(sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]))
    for name, value, indent in (("config.json", config, 2), ("vocab.json", vocab, None)):
        text = json.dumps(value, indent=indent, ensure_ascii=False) + "\n"
        (out / name).write_text(text, encoding="utf-8", newline="\n")
    with tempfile.TemporaryDirectory() as folder:  # the package names the files itself
        tokenizer.save_model(folder)
        shutil.copy(Path(folder) / "merges.txt", out / "merges.txt")
    tensors = {f"transformer.{name}": p.numpy().astype(np.float16) for name, p in model.state_dict().items()}
    write_safetensors(out / "model.safetensors", tensors, {"format": "pt"})
    (out / "README.md").write_text(card, encoding="utf-8", newline="\n")


def train(
    data, out="models/tales", checkpoint="build/tales.pt", n_vocab=2048, n_ctx=512, n_embd=192, n_head=6, n_layer=6,
    n_steps=3600, batch_tokens=4096, short_window=256, short_share=0.8, peak=4e-3, warmup=200, weight_decay=0.1,
    clip=1.0, held_out=0.01, seed=0, checkpoint_every=250, data_name="", data_licence="not stated",
):
    """Train on `data` and write the model folder `out`, with the held-out stories and a model card in it.

    `short_share` of the steps use windows of `short_window` tokens, the rest windows of `n_ctx`, so that every position
    is trained. `data_name` and `data_licence` go into the model card as they are.
    """
    settings = dict(locals())
    for key in ("out", "checkpoint", "checkpoint_every", "data_name", "data_licence"):
        settings.pop(key)  # these may change between one run and the next that goes on with it
    settings["data"] = Path(data).name
    del settings["n_steps"]
    if short_window > n_ctx or batch_tokens % n_ctx or batch_tokens % short_window or n_embd % n_head:
        sys.exit("batch_tokens: a multiple of n_ctx and of short_window, n_embd: of n_head; short_window: up to n_ctx")
    stories = read_stories(data)
    if len(stories) < 2:
        sys.exit(f"{data}: needs at least two stories, separated by lines of {EOT}")
    train_stories, test_stories = split_stories(stories, held_out, seed)
    tokenizer = train_tokenizer(train_stories, n_vocab)
    if tokenizer.get_vocab_size() != n_vocab:
        sys.exit(f"{data}: too little text for {n_vocab} tokens; it gives {tokenizer.get_vocab_size()}")
    stream, test_stream = to_stream(tokenizer, train_stories), to_stream(tokenizer, test_stories)
    test_bytes = sum(len(story.encode()) for story in test_stories)
    eot = tokenizer.token_to_id(EOT)

    torch.manual_seed(seed)
    model = GPT2(n_vocab, n_ctx, n_embd, n_head, n_layer)
    optimizers = make_optimizers(model, weight_decay)
    step, seconds, plan, checkpoint = 0, 0.0, [], Path(checkpoint)
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        if saved["settings"] != settings:
            sys.exit(f"{checkpoint} was made with other settings; move it away or name another --checkpoint")
        model.load_state_dict(saved["model"])
        for optimizer, state in zip(optimizers, saved["optimizers"]):
            optimizer.load_state_dict(state)
        step, seconds, plan = saved["step"], saved["seconds"], saved["plan"]
        print(f"resumed at step {step} from {checkpoint}", file=sys.stderr)

    if [n for _, n in plan][-1:] != [n_steps]:
        plan.append((step, n_steps))

    def save():
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        part = checkpoint.with_suffix(".part")
        state = {"model": model.state_dict(), "optimizers": [optimizer.state_dict() for optimizer in optimizers]}
        torch.save({**state, "settings": settings, "step": step, "seconds": seconds, "plan": plan}, part)
        os.replace(part, checkpoint)

    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(stream):,} tokens to train on, "
          f"{len(test_stories)} stories of {test_bytes:,} bytes held out", file=sys.stderr)
    bar = tqdm(total=n_steps, initial=step, unit="step", mininterval=10, dynamic_ncols=True)
    while step < n_steps:
        began = time.perf_counter()
        window = short_window if step < short_share * n_steps else n_ctx
        batch = batch_of_step(stream, step, seed, batch_tokens, window)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, n_steps, peak, warmup)
            optimizer.step()
            optimizer.zero_grad()
        step, seconds = step + 1, seconds + time.perf_counter() - began
        bar.update()
        if step % 50 == 0:
            bar.set_postfix(loss=f"{loss.item():.3f}")
        if step % checkpoint_every == 0 or step == n_steps:
            save()
            # In windows as they are trained by now: later positions would be guesses.
            nats, bits = held_out_loss(model, test_stream, window, test_bytes)
            rate = f"{step * batch_tokens / seconds:,.0f} tokens a second"
            scores = f"train {loss.item():.4f}, held out {nats:.4f} nats a token, {bits:.4f} bits a byte"
            tqdm.write(f"step {step}: {scores}, {rate}", file=sys.stderr)
    bar.close()

    for parameter in model.parameters():  # what is scored and sampled is what will be stored
        parameter.data = parameter.data.half().float()
    nats, bits = held_out_loss(model, test_stream, n_ctx, test_bytes)
    samples = {
        "greedy": continue_text(model, tokenizer, "Once upon a time", 120, n_ctx, 0, seed),
        "sampled": continue_text(model, tokenizer, "The fox said", 120, n_ctx, 0.8, seed),
    }
    card = CARD.format(
        **{**settings, **{name: text.replace("\n\n", "\n>\n> ") for name, text in samples.items()}}, n_steps=n_steps,
        data_name=data_name or Path(data).name, data_licence=data_licence, n_merges=n_vocab - 257, eot=eot,
        n_params=sum(p.numel() for p in model.parameters()), n_train=len(train_stories), n_test=len(test_stories),
        train_bytes=sum(len(story.encode()) for story in train_stories), train_tokens=len(stream),
        seen=n_steps * batch_tokens, minutes=seconds / 60, bits=bits, nats=nats, test_bytes=test_bytes,
        planned=", ".join(f"{n:,} steps" + (f" from step {start:,} on" if start else "") for start, n in plan),
        command=shlex.join(["python", "tools/train_tales.py", *sys.argv[1:]]),
    )
    export(model, tokenizer, out, card)
    text = f"\n{EOT}\n".join(test_stories) + "\n"
    (Path(out) / "held_out.txt").write_text(text, encoding="utf-8", newline="\n")
    print(f"{out}: held-out loss {bits:.4f} bits per byte", file=sys.stderr)


if __name__ == "__main__":
    fire.Fire(train)
