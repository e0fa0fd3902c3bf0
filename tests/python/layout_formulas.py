# SPDX-License-Identifier: Apache-2.0
"""What other libraries compute from their own arrays, in plain NumPy: one layer, states from zero.

Each function takes arrays by the library's names and x [T,B,C], and gives y [T,B,H].
"""

import numpy as np


def sigmoid(v):
    return 1 / (1 + np.exp(-v))


def run(step, x, size, states=1):
    """y of a step (x_t, *states) -> states, the first of which is the output."""
    state = [np.zeros((x.shape[1], size))] * states
    y = []
    for x_t in x:
        state = step(x_t, *state)
        y.append(state[0])
    return np.array(y)


def both(layer, x):
    """`layer(x, direction)` forwards, and backwards over the reversed x."""
    return np.concatenate([layer(x, 0), layer(x[::-1], 1)[::-1]], axis=-1)


def lstm_step(gates, order):
    """`gates(x, h)` gives all pre-activations side by side, in this order."""

    def step(x, h, c):
        found = dict(zip(order, np.split(gates(x, h), 4, axis=-1), strict=True))
        c = sigmoid(found["f"]) * c + sigmoid(found["i"]) * np.tanh(found["g"])
        return sigmoid(found["o"]) * np.tanh(c), c

    return step


# ---- Haste and Keras


def haste_lstm(x, kernel, recurrent_kernel, bias, order="igfo"):
    step = lstm_step(lambda x, h: x @ kernel + h @ recurrent_kernel + bias, order)
    return run(step, x, len(recurrent_kernel), 2)


def haste_gru(x, kernel, recurrent_kernel, bias, recurrent_bias):
    def step(x, h):
        z, r, g = np.split(x @ kernel + bias, 3, axis=-1)
        hz, hr, hg = np.split(h @ recurrent_kernel + recurrent_bias, 3, axis=-1)
        z, r = sigmoid(z + hz), sigmoid(r + hr)
        return (z * h + (1 - z) * np.tanh(g + r * hg),)

    return run(step, x, len(recurrent_kernel))


def haste_indrnn(x, kernel, recurrent_scale, bias):
    return run(
        lambda x, h: (np.tanh(x @ kernel + bias + h * recurrent_scale),), x, len(recurrent_scale)
    )


def norm(v, scale=1.0):
    apart = v - v.mean(-1, keepdims=True)
    return scale * apart / np.sqrt((apart**2).mean(-1, keepdims=True) + 1e-5)


def haste_normed_lstm(x, kernel, recurrent_kernel, bias, gamma, gamma_h, beta_h):
    def step(x, h, c):
        v = norm(x @ kernel, gamma[0]) + norm(h @ recurrent_kernel, gamma[1]) + bias
        i, g, f, o = np.split(v, 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(norm(c, gamma_h) + beta_h), c

    return run(step, x, len(recurrent_kernel), 2)


def haste_normed_gru(x, kernel, recurrent_kernel, bias, recurrent_bias, gamma):
    def step(x, h):
        z, r, g = np.split(norm(x @ kernel, gamma[0]) + bias, 3, axis=-1)
        of_h = norm(h @ recurrent_kernel, gamma[1]) + recurrent_bias
        hz, hr, hg = np.split(of_h, 3, axis=-1)
        z, r = sigmoid(z + hz), sigmoid(r + hr)
        return (z * h + (1 - z) * np.tanh(g + r * hg),)

    return run(step, x, len(recurrent_kernel))


def haste_normed_indrnn(x, kernel, recurrent_scale, bias, gamma):
    def step(x, h):
        return (np.tanh(norm(x @ kernel, gamma[0]) + bias + h * recurrent_scale),)

    return run(step, x, len(recurrent_scale))


def keras_lstm(x, kernel, recurrent_kernel, bias):
    return haste_lstm(x, kernel, recurrent_kernel, bias, "ifgo")


def keras_gru(x, kernel, recurrent_kernel, bias):
    return haste_gru(x, kernel, recurrent_kernel, *bias)


def keras_gru_before(x, kernel, recurrent_kernel, bias):
    """With reset_after=False."""
    size = len(recurrent_kernel)

    def step(x, h):
        xz, xr, xh = np.split(x @ kernel + bias, 3, axis=-1)
        gates = h @ recurrent_kernel[:, : 2 * size]
        z, r = sigmoid(xz + gates[:, :size]), sigmoid(xr + gates[:, size:])
        return (z * h + (1 - z) * np.tanh(xh + (r * h) @ recurrent_kernel[:, 2 * size :]),)

    return run(step, x, size)


def keras_rnn(x, kernel, recurrent_kernel, bias):
    step = lambda x, h: (np.tanh(x @ kernel + bias + h @ recurrent_kernel),)  # noqa: E731
    return run(step, x, len(recurrent_kernel))


# ---- TensorFlow's cells of version 1


def tensorflow_lstm(x, kernel, bias, forget_bias=1.0, w_i_diag=0, w_f_diag=0, w_o_diag=0):
    def step(x, h, c):
        i, j, f, o = np.split(np.concatenate([x, h], axis=-1) @ kernel + bias, 4, axis=-1)
        kept = c * sigmoid(f + forget_bias + w_f_diag * c)
        c = kept + sigmoid(i + w_i_diag * c) * np.tanh(j)
        return np.tanh(c) * sigmoid(o + w_o_diag * c), c

    return run(step, x, len(bias) // 4, 2)


def tensorflow_gru_before(x, **arrays):
    """As the operator GRUBlockCell has it."""
    gates, gates_bias = arrays["gates/kernel"], arrays["gates/bias"]
    candidate, candidate_bias = arrays["candidate/kernel"], arrays["candidate/bias"]

    def step(x, h):
        r, u = np.split(sigmoid(np.concatenate([x, h], axis=-1) @ gates + gates_bias), 2, axis=-1)
        c = np.tanh(np.concatenate([x, r * h], axis=-1) @ candidate + candidate_bias)
        return (u * h + (1 - u) * c,)

    return run(step, x, len(candidate_bias))


def tensorflow_rnn(x, kernel, bias):
    step = lambda x, h: (np.tanh(np.concatenate([x, h], axis=-1) @ kernel + bias),)  # noqa: E731
    return run(step, x, len(bias))


# ---- FlashRNN: states [B, heads, D]


def _by_head(W, R, h):
    """W x as [B, G, heads, D], and R h likewise."""
    gates, heads, size, _ = R.shape
    Ry = np.einsum("gndp,bnp->bgnd", R, h.reshape(len(h), heads, size))
    return lambda x: (x @ W.T).reshape(len(x), gates, heads, size), Ry


def flashrnn_lstm(x, W, R, b):
    def gates(x, h):
        Wx, Ry = _by_head(W, R, h)
        return (Wx(x) + Ry + b).reshape(len(x), -1)

    return run(lstm_step(gates, "ifgo"), x, R.shape[1] * R.shape[2], 2)


def flashrnn_gru(x, W, R, b):
    def step(x, h):
        Wx, Ry = _by_head(W, R, h)
        Wx = Wx(x)
        g, n = Ry[:, 0] + b[0], Wx[:, 2] + b[3]
        r, z = sigmoid(Wx[:, 0] + Ry[:, 1] + b[1]), sigmoid(Wx[:, 1] + Ry[:, 2] + b[2])
        old = h.reshape(z.shape)
        return ((z * old + (1 - z) * np.tanh(n + r * g)).reshape(h.shape),)

    return run(step, x, R.shape[1] * R.shape[2])


def flashrnn_rnn(x, W, R, b):
    def step(x, h):
        Wx, Ry = _by_head(W, R, h)
        return (np.tanh(Wx(x) + Ry + b).reshape(h.shape),)

    return run(step, x, R.shape[1] * R.shape[2])


# ---- ONNX: both directions where W has two; y [T,B,D*H]


def _onnx(step_of, states):
    def layer(x, W, R, B):
        def one(x, way):
            Wb, Rb = np.split(B[way], 2)
            from_x = lambda x: x @ W[way].T + Wb  # noqa: E731
            from_h = lambda h: h @ R[way].T + Rb  # noqa: E731
            return run(step_of(from_x, from_h), x, R.shape[2], states)

        return both(one, x) if len(W) == 2 else one(x, 0)

    return layer


def _onnx_gru(from_x, from_h):
    def step(x, h):
        xz, xr, xh = np.split(from_x(x), 3, axis=-1)
        hz, hr, hh = np.split(from_h(h), 3, axis=-1)
        z, r = sigmoid(xz + hz), sigmoid(xr + hr)
        return ((1 - z) * np.tanh(xh + r * hh) + z * h,)  # linear_before_reset = 1

    return step


def onnx_gru_before(x, W, R, B):
    """With linear_before_reset = 0, as the operator's definition has it."""

    def one(x, way):
        Wbz, Wbr, Wbh, Rbz, Rbr, Rbh = np.split(B[way], 6)
        Wz, Wr, Wh = np.split(W[way], 3)
        Rz, Rr, Rh = np.split(R[way], 3)

        def step(x, h):
            z = sigmoid(x @ Wz.T + h @ Rz.T + Wbz + Rbz)
            r = sigmoid(x @ Wr.T + h @ Rr.T + Wbr + Rbr)
            n = np.tanh(x @ Wh.T + (r * h) @ Rh.T + Rbh + Wbh)
            return ((1 - z) * n + z * h,)

        return run(step, x, R.shape[2])

    return both(one, x) if len(W) == 2 else one(x, 0)


onnx_lstm = _onnx(lambda x_of, h_of: lstm_step(lambda x, h: x_of(x) + h_of(h), "iofg"), 2)
onnx_gru = _onnx(_onnx_gru, 1)
onnx_rnn = _onnx(lambda x_of, h_of: lambda x, h: (np.tanh(x_of(x) + h_of(h)),), 1)


# ---- sru: one cell, with both directions in its arrays; y [T,B,D*H]


def sru_cell(x, weight, weight_c, bias, scale_x, directions=1, activation=lambda c: c):
    forget_w, reset_w = weight_c.reshape(2, directions, -1)
    forget_b, reset_b = bias.reshape(2, directions, -1)
    steps, batch, _ = x.shape
    u = (x @ weight).reshape(steps, batch, directions, forget_b.shape[1], -1)
    own_x = u[..., 3] if u.shape[-1] == 4 else scale_x * x.reshape(u.shape[:-1])
    out = np.zeros(u.shape[:-1])
    for way in range(directions):
        c = np.zeros(u.shape[1:2] + u.shape[3:4])
        for t in range(steps) if way == 0 else reversed(range(steps)):
            of_x = u[t, :, way]
            f = sigmoid(of_x[..., 1] + forget_w[way] * c + forget_b[way])
            r = sigmoid(of_x[..., 2] + reset_w[way] * c + reset_b[way])
            c = f * c + (1 - f) * of_x[..., 0]
            out[t, :, way] = r * activation(c) + (1 - r) * own_x[t, :, way]
    return out.reshape(steps, batch, -1)
