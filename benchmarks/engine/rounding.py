"""Effect of rounding activations on tiny models. Prints one JSON line per model and number of bytes.

Compares with the plain reference, which does not round: the mean divergence (KL, in nats) of the distributions of the
first token after each prompt, and how many greedy texts of 64 tokens are equal to the last token. The models' random
weights amplify every error, so a trained model differs less.

python benchmarks/engine/rounding.py [--isa avx512] [--activation_bytes 1 2] [--prompts 200]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from ballast.host.isa import chosen_isa
from ballast.tiny import write_tiny_model
from ballast.weights.gguf import open_gguf
from devkit.bench_record import bench_record
from devkit.oracles.divergence import greedy_run, mean_divergence, random_prompts

MODELS = (("v2lite", "q4_k"), ("v2", "q6_k"), ("v3", "q8_0"))
NEW_TOKENS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", default=chosen_isa())
    parser.add_argument("--activation_bytes", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--prompts", type=int, default=200)
    options = parser.parse_args()
    prompts = random_prompts(options.prompts)
    for arch, quant in MODELS:
        with tempfile.TemporaryDirectory() as directory:
            model = open_gguf(write_tiny_model(Path(directory), arch=arch, mla="split", quant=quant).gguf)
            texts, distributions = greedy_run(model, prompts, NEW_TOKENS, "reference", 2)
            for num_bytes in options.activation_bytes:
                ours, our_distributions = greedy_run(model, prompts, NEW_TOKENS, options.isa, num_bytes)
                same = sum(text == expected for text, expected in zip(ours, texts, strict=True))
                print(
                    bench_record(
                        "engine/rounding",
                        f"{arch} {quant}, {num_bytes} bytes an activation",
                        isa=options.isa,
                        mean_kl=float(f"{mean_divergence(distributions, our_distributions):.2e}"),
                        equal_texts=round(same / len(prompts), 3),
                        prompts=len(prompts),
                    ),
                    flush=True,
                )


if __name__ == "__main__":
    main()
