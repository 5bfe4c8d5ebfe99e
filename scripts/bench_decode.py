"""Decoding with the key/value cache against reading the whole prefix again at every token.

    python scripts/bench_decode.py --length 512 --width 256 --layers 6

Prints the largest difference between the two kinds of logits over all positions, the median time of one token at the
given length each way, and the speed-up; then the same as one line of JSON.
"""

import argparse
import json
import statistics
import time

import torch

from maskzoo.transformer import LanguageModel, TransformerConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=512, help="tokens of the prefix")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=None)
    parser.add_argument("--vocabulary", type=int, default=258)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--mask", default="causal")
    parser.add_argument("--bias", default=None)
    parser.add_argument("--position", default="rotary")
    parser.add_argument("--repeats", type=int, default=15, help="timed tokens, each way")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    end = arguments.length + arguments.repeats
    config = TransformerConfig(
        layers=arguments.layers,
        width=arguments.width,
        heads=arguments.heads,
        kv_heads=arguments.kv_heads,
        position=arguments.position,
        context=end,
    )
    model = LanguageModel(config, arguments.vocabulary, arguments.mask, arguments.bias).to(arguments.device).eval()
    tokens = torch.randint(arguments.vocabulary, (arguments.batch, end), device=arguments.device)
    with torch.no_grad():
        result = compare(model, tokens, arguments.length)
    print(
        f"{arguments.layers} layers, width {arguments.width}, {arguments.mask}, {arguments.length} tokens, "
        f"{arguments.device}"
    )
    print(f"  largest difference of logits   {result['largest_difference']:.2e}")
    print(f"  whole prefix again             {result['prefix_ms']:9.2f} ms a token")
    print(f"  with the cache                 {result['cache_ms']:9.2f} ms a token, {result['cache_bytes']:,} bytes")
    print(f"  speed-up                       {result['speed_up']:9.2f}")
    print(json.dumps({**vars(arguments), **result}))


def compare(model: LanguageModel, tokens: torch.Tensor, length: int) -> dict[str, float]:
    """Decode all tokens one by one; from `length` on, time each step beside the same step without a cache."""
    cache = model.new_cache(*tokens.shape)
    whole = model(tokens)
    differences, with_cache, without = [], [], []
    for t in range(tokens.shape[1]):
        started = clock(tokens)
        logits = model(tokens[:, t : t + 1], cache=cache)
        with_cache.append(clock(tokens) - started)
        differences.append((logits[:, 0] - whole[:, t]).abs().max().item())
        if t >= length:
            started = clock(tokens)
            model(tokens[:, : t + 1])
            without.append(clock(tokens) - started)
    cached_ms, prefix_ms = (1000 * statistics.median(times) for times in (with_cache[length:], without))
    return {
        "largest_difference": max(differences),
        "cache_ms": cached_ms,
        "prefix_ms": prefix_ms,
        "speed_up": prefix_ms / cached_ms,
        "cache_bytes": cache.bytes(),
    }


def clock(on: torch.Tensor) -> float:
    if on.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
