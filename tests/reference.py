"""GPT-2 once more, for the tests alone: one number at a time, from the papers, with no array library.

Slow and plain on purpose. Nothing is shared with the versions but the names of the parameters, so a mistake there is
not repeated here. Sources: "Attention Is All You Need" (Vaswani et al. 2017) for attention and feed-forward layers,
"Layer Normalization" (Ba et al. 2016), "Gaussian Error Linear Units" (Hendrycks & Gimpel 2016), and "Language Models
are Unsupervised Multitask Learners" (Radford et al. 2019) for what GPT-2 changed: normalization before each layer and
after the last, learned positions, and the token embeddings once more as the output layer.
"""
import math

LAYER_NORM_EPSILON = 1e-5  # OpenAI's, in the GPT-2 release


def gelu(x):
    """Hendrycks & Gimpel 2016, section 2, the approximation with tanh."""
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * math.pow(x, 3))))


def softmax(scores):
    """Vaswani et al. 2017, equation 1, with a common factor above and below the line that avoids overflow."""
    highest = max(scores)
    weights = [math.exp(score - highest) for score in scores]
    return [weight / math.fsum(weights) for weight in weights]


def layer_norm(vector, gain, bias):
    """Ba et al. 2016, equation 4: over the features of one position."""
    mean = math.fsum(vector) / len(vector)
    variance = math.fsum((value - mean) ** 2 for value in vector) / len(vector)
    deviation = math.sqrt(variance + LAYER_NORM_EPSILON)
    return [gain[i] * (vector[i] - mean) / deviation + bias[i] for i in range(len(vector))]


def affine(vector, weights, bias):
    """Output j is bias[j] + the sum over i of vector[i] * weights[i][j]."""
    outputs = []
    for j in range(len(bias)):
        outputs.append(bias[j] + math.fsum(vector[i] * weights[i][j] for i in range(len(vector))))
    return outputs


def add(a, b):
    return [a[i] + b[i] for i in range(len(a))]


def causal_attention(queries, keys, values):
    """One head of Vaswani et al. 2017, sections 3.2.1 and 3.2.3: no position sees a later one."""
    outputs = []
    for t in range(len(queries)):
        scores = []
        for s in range(t + 1):
            dot = math.fsum(queries[t][i] * keys[s][i] for i in range(len(keys[s])))
            scores.append(dot / math.sqrt(len(keys[s])))
        weights = softmax(scores)
        outputs.append([math.fsum(weights[s] * values[s][i] for s in range(t + 1)) for i in range(len(values[0]))])
    return outputs


def gpt2_logits(ids, params, n_head):
    """ids: a list of int -> for each position a list of n_vocab floats. params: as in the versions, arrays or lists."""
    wte, wpe = floats(params["wte"]), floats(params["wpe"])
    states = [add(wte[ids[t]], wpe[t]) for t in range(len(ids))]
    n_embd = len(states[0])
    d_head = n_embd // n_head

    for block in params["blocks"]:
        p = floats(block)
        # queries, keys and values stand side by side in one layer, and in each of the three the heads side by side
        qkv = []
        for state in states:
            normed = layer_norm(state, p["ln_1"]["g"], p["ln_1"]["b"])
            qkv.append(affine(normed, p["attn"]["c_attn"]["w"], p["attn"]["c_attn"]["b"]))
        joined = [[] for _ in states]
        for head in range(n_head):
            first = head * d_head
            queries = [row[first : first + d_head] for row in qkv]
            keys = [row[n_embd + first : n_embd + first + d_head] for row in qkv]
            values = [row[2 * n_embd + first : 2 * n_embd + first + d_head] for row in qkv]
            for t, output in enumerate(causal_attention(queries, keys, values)):
                joined[t] += output
        for t in range(len(states)):
            states[t] = add(states[t], affine(joined[t], p["attn"]["c_proj"]["w"], p["attn"]["c_proj"]["b"]))

        for t in range(len(states)):
            normed = layer_norm(states[t], p["ln_2"]["g"], p["ln_2"]["b"])
            hidden = [gelu(value) for value in affine(normed, p["mlp"]["c_fc"]["w"], p["mlp"]["c_fc"]["b"])]
            states[t] = add(states[t], affine(hidden, p["mlp"]["c_proj"]["w"], p["mlp"]["c_proj"]["b"]))

    p = floats(params["ln_f"])
    logits = []
    for state in states:
        normed = layer_norm(state, p["g"], p["b"])
        logits.append([math.fsum(normed[i] * row[i] for i in range(n_embd)) for row in wte])
    return logits


def floats(values):
    """Dicts and arrays of any dtype -> dicts and lists of Python floats."""
    if isinstance(values, dict):
        return {key: floats(value) for key, value in values.items()}
    return [floats(value) if hasattr(value, "__len__") else float(value) for value in values]
