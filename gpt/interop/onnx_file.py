"""A model with its tokenizer as one ONNX file, which onnxruntime and other programs run without PyTorch."""

import copy
import json
import logging
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from gpt import invocation
from gpt.data.tokenizers import Tokenizer
from gpt.errors import InputError, first_line
from gpt.interop.hugging_face import require_float32
from gpt.interop.tokenizer_json import to_tokenizer_json
from gpt.interop.verification import logits_of, require_same, window_of
from gpt.model import GPT
from gpt.model.attention import Attention, AutoCore, ReferenceCore, SDPACore

PACKAGES = ("onnx", "onnxscript")
"""What PyTorch's exporter imports."""
MAX_BYTES = 2**31 - 2**24
"""Bytes of weights that one file holds, of the 2 GiB of a protobuf message; the rest is for the graph."""


def write_onnx(path: Path, model: GPT, tokenizer: Tokenizer) -> None:
    """Write a model as an ONNX file: input `idx` (B, T) int64, output `logits` (B, T, V) float32, any B and T.

    Its metadata have the tokenizer as `tokenizer.json`, and `block_size`, the longest T.

    Raises:
        InputError: the weights are quantized or too large for one file, the tokenizer cannot be written, or packages
            are missing.
        OSError: the file cannot be written.
    """
    if any(find_spec(package) is None for package in PACKAGES):
        raise InputError(f"exporting to ONNX needs the onnx and onnxscript packages: {invocation.extra('onnx')}")
    require_float32(model)
    size = 4 * sum(parameter.numel() for parameter in model.parameters())
    if size > MAX_BYTES:
        raise InputError(f"an ONNX file holds at most 2 GiB, and the weights have {size / 2**30:.1f}; use --to hf")
    metadata = {
        "tokenizer.json": json.dumps(to_tokenizer_json(tokenizer), ensure_ascii=False),
        "block_size": str(model.config.block_size),
    }
    import onnx_ir

    exported: Any = _program(model).model
    onnx_ir.passes.common.ClearMetadataAndDocStringPass()(exported)  # stack traces with paths of this machine
    exported.metadata_props.update(metadata)
    onnx_ir.save(exported, path)


def check_onnx(path: Path, model: GPT) -> float:
    """Run an ONNX file by onnxruntime, or by onnx itself where that is missing, and compare it with the model.

    Results and errors are those of `require_same`; an InputError too where the file cannot be run.
    """
    idx = window_of(model)
    try:
        logits = _runner(path).run(["logits"], {"idx": idx.unsqueeze(0).numpy()})[0][0]
    except Exception as error:  # each program has its own
        raise InputError(f"the written file does not run: {first_line(error)}") from None
    return require_same(torch.from_numpy(logits), logits_of(model, idx))


def _runner(path: Path) -> Any:
    if find_spec("onnxruntime") is not None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what is wrong is in the exception
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(str(path))


def _program(model: GPT) -> torch.onnx.ONNXProgram:
    """Return the model as a graph, with attention written out: the fused kernel is not of ONNX."""
    written_out = copy.deepcopy(model).eval()
    for module in written_out.modules():
        if isinstance(module, Attention) and type(module.core) in (AutoCore, SDPACore):
            module.core = ReferenceCore(dropout=0.0)
    longest = model.config.block_size
    axes: dict[int, Any] = {0: torch.export.Dim("batch")}
    if longest > 1:
        axes[1] = torch.export.Dim("time", min=1, max=longest)
    idx = torch.zeros(2, min(2, longest), dtype=torch.int64)
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns that torchvision is not installed
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of PyTorch, about its own code
            program = torch.onnx.export(
                written_out,
                (idx,),
                dynamo=True,
                verbose=False,
                input_names=["idx"],
                output_names=["logits"],
                dynamic_shapes={"idx": axes},
            )
    finally:
        logger.setLevel(level)
    assert program is not None
    return program
