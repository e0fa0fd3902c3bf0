# SPDX-License-Identifier: Apache-2.0
"""Weights of the sru package: there and back, and against its formulas."""

import layout_formulas as formulas
import numpy as np
import pytest
from layout_support import C, H, agrees, draw, load, same, x_of
from support import make


def sru_cells(width, layers, directions, scale=1.0, peephole=True):
    columns = directions * H
    for layer in range(layers):
        inputs = width if layer == 0 else columns
        blocks = 3 if inputs == columns else 4
        cell = draw(weight=(inputs, columns * blocks), weight_c=2 * columns, bias=2 * columns)
        cell["weight_c"] *= peephole
        yield cell | {"scale_x": np.array([scale])}


@pytest.mark.parametrize("width", [C, H, 2 * H])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("peephole", [True, False])
def test_sru(width, layers, directions, peephole):
    cells = [*sru_cells(width, layers, directions, peephole=peephole)]
    if directions == 2 and width == H:  # a layer here has no projection there
        blocks = cells[0]["weight"].reshape(width, 2, H, 4)
        blocks[..., 3] = np.eye(H)[:, None]
    wanted = x_of(width)
    for cell in cells:
        wanted = formulas.sru_cell(wanted, directions=directions, activation=np.tanh, **cell)
    weights = {f"rnn_lst.{i}.{name}": v for i, cell in enumerate(cells) for name, v in cell.items()}
    name = "PeepholeSRU" if peephole else "SRU"
    options = {"activation": "tanh", "bidirectional": directions == 2}
    rnn = load(weights, "asapp-sru", name, **options)
    agrees(rnn, wanted, width)
    told = rnn.export("asapp-sru")
    assert list(told) == list(weights)
    same(told, weights)
    for name in weights:
        if "scale_x" in name or (not peephole and "weight_c" in name):
            del told[name]  # as older ones have it
    agrees(load(told, "asapp-sru", "PeepholeSRU" if peephole else "SRU", **options), wanted, width)


def exported(rnn):
    """The arrays of its one cell."""
    return {name.removeprefix("rnn_lst.0."): v for name, v in rnn.export("asapp-sru").items()}


def test_sru_rescaled():
    """A number for x itself; a projection of x has it in its weights."""
    for width, directions in [(C, 1), (C, 2), (2 * H, 2), (H, 1)]:
        (cell,) = sru_cells(width, 1, directions, scale=1.75)
        rnn = load(cell, "asapp-sru", "PeepholeSRU", bidirectional=directions == 2)
        assert rnn.rescale
        agrees(rnn, formulas.sru_cell(x_of(width), directions=directions, **cell), width)
        same(exported(rnn), cell)
    cells = [*sru_cells(C, 2, 1, scale=1.75)]  # a projection below, none above
    weights = {f"rnn_lst.{i}.{name}": v for i, cell in enumerate(cells) for name, v in cell.items()}
    wanted = formulas.sru_cell(formulas.sru_cell(x_of(), **cells[0]), **cells[1])
    agrees(load(weights, "asapp-sru", "PeepholeSRU"), wanted)
    (cell,) = sru_cells(H, 1, 1, scale=np.float32(np.sqrt(1 + 2 * np.exp(-1.5))))
    cell = {name: value.astype(np.float32) for name, value in cell.items()}
    rnn = load(cell, "asapp-sru", "PeepholeSRU", rescale=True, highway_bias=-1.5)
    assert rnn.highway_bias == -1.5
    refused = [(0.5, "PeepholeSRU", {}, r"scale_x: expected a number of at least 1.*got 0\.5")]
    refused += [(1.0, "SRU", {"rescale": True}, "rescale: expected False, since the arrays say")]
    for scale, name, options, words in refused:
        (cell,) = sru_cells(H, 1, 1, scale=scale, peephole=name != "SRU")
        with pytest.raises(ValueError, match=words):
            load(cell, "asapp-sru", name, **options)


@pytest.mark.parametrize("width", [C, H])
@pytest.mark.parametrize("directions", [1, 2])
def test_sru_projected(width, directions):
    """n_proj: x by weight_proj, which both directions share, and then the weight."""
    (cell,) = sru_cells(width, 1, directions, scale=1.25)
    blocks = cell["weight"].shape[1]
    cell |= draw(weight_proj=(width, 2), weight=(2, blocks))
    if directions == 2 and width == H:
        with pytest.raises(ValueError, match="weight_proj: expected one direction where C is H"):
            load(cell, "asapp-sru", "PeepholeSRU", bidirectional=True)
        return
    plain = {name: value for name, value in cell.items() if name != "weight_proj"}
    plain["weight"] = cell["weight_proj"] @ cell["weight"]
    rnn = load(cell, "asapp-sru", "PeepholeSRU", bidirectional=directions == 2)
    assert rnn.projection_size == 2
    agrees(rnn, formulas.sru_cell(x_of(width), directions=directions, **plain), width)
    got = exported(rnn)
    same({name: got[name] for name in cell}, cell)


def test_an_array_without_elements_is_no_scale():
    weights = make("SRU", 4, 4, rescale=True, highway_bias=0.5).export("asapp-sru")
    weights = {n: v[:0] if n.endswith("scale_x") else v for n, v in weights.items()}
    with pytest.raises(
        ValueError, match=r"^weights: an array has fewer axes or elements than 'asapp"
    ):
        load(weights, "asapp-sru", "SRU")
