// Every kind of file that strangers give and that is read without torch: a sound one, and its
// reader. hostile_files_test.cc damages them, tests/fuzz/ does so endlessly.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "paradyse/plan/cluster.h"
#include "paradyse/plan/config.h"
#include "paradyse/plan/model_folder.h"
#include "paradyse/plan/plan.h"
#include "paradyse/plan/profile.h"
#include "paradyse/run/data.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/lengths_file.h"
#include "src/plan/base/sha256.h"
#include "src/plan/profile/fit.h"
#include "src/plan/report/run_report.h"
#include "src/plan/search/layers/layer_costs_file.h"
#include "src/plan/search/layouts/samples_file.h"
#include "src/run/data/evoformer/alignment.h"
#include "src/run/data/tokenizer_files.h"
#include "src/run/train/checkpoint_state.h"
#include "src/run/train/files.h"
#include "src/run/weights/weight_files.h"
#include "tests/support/token_files.h"

namespace paradyse::test {

namespace fs = std::filesystem;

// A kind of file: its name in `folder`, one that is sound, and who reads it.
struct Reader {
  std::string name;
  std::string sound;
  std::function<void(const fs::path& file)> read;
  bool optional = false;  // what is no file there is as if nothing were
  bool binary = false;    // no text
  bool any_end = false;   // what stands behind that which is read does not matter
};

// Files that it accepts are in tests/fuzz/corpus/, in a folder of this name.
inline std::string corpus_name(const Reader& reader) {
  std::string name = reader.name;
  std::ranges::replace(name, '/', '_');
  return name;
}

inline std::string source_file(const std::string& name) {
  return content_of(fs::path(PARADYSE_SOURCE_DIR) / name).value();
}

inline DataOptions data_at(const fs::path& file) {
  DataOptions options;
  options.paths = {file};
  return options;
}

inline std::string sound_state() {
  CheckpointState state;
  state.step = 3;
  state.ranks = 2;
  state.weight_domain = 2;
  state.data = {
      .fingerprint = "f", .drawn = "d", .documents = 4, .draws = 3, .epoch = 0, .next = 1};
  state.learned.ratios[{{"attention", "DataZ"}, 1, 5}] = {1.0, 1.5};
  state.learned.caps[3] = 1 << 20;
  state.learned.speeds = {{1.0}, {2.0}};
  state.learned.slow_since = {0, 3};
  state.left_out = {1};
  state.configuration = {{"train.steps", "8"}};
  state.files = {
      {.name = "rank-00000.safetensors", .bytes = 10, .xxh64 = "0123456789abcdef"},
      {.name = "rank-00001.safetensors", .bytes = 10, .xxh64 = "0123456789abcdef"}};
  return to_json(state);
}

// With the digest that its content has now.
inline std::string sealed(const std::string& text) {
  nlohmann::json state = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!state.is_object()) {
    return text;
  }
  state.erase("sha256");
  state["sha256"] = sha256_hex(state.dump());
  return state.dump();
}

inline constexpr const char* kPlan = R"({"format": "paradyse-plan", "version": 1,
 "model": {"name": "m", "sha256": "", "layers": 2},
 "cluster": {"name": "local", "sha256": "", "ranks": 2},
 "weight_domain": 2, "lengths": [5, 3],
 "programs": {"all": [{"layers": 2, "parts": [
   {"part": "attention", "strategy": "UlyssesZ", "recompute": "none"},
   {"part": "mlp", "strategy": "gather", "recompute": "light"}]}]},
 "micro_batches": [{"groups": [{"ranks": [0, 1], "documents": [0, 1], "program": "all"}]}]})";

inline constexpr const char* kPrepared =
    R"({"format": "paradyse-data", "version": 1, "vocab_size": 256,
 "tokenizer": {"name": "t", "sha256": "00"}, "sources": ["a"],
 "shards": [{"name": "s", "documents": 1, "tokens": 3, "labels": 2, "sha256": "00"}]})";

inline constexpr const char* kStockholm =
    "# STOCKHOLM 1.0\na  MKV-LIERW\nb  MKVALIE.W\n#=GC MM ...m.....\n//\n";

inline void read_run_folder(const fs::path& file) {
  const fs::path run = file.parent_path();
  const ReportedRun report = read_run(run);
  totals(report);
  for (const ReportedStep& step : report.steps) {
    (void)report.plan_of(step);
  }
}

inline constexpr const char* kStep =
    R"({"step":1,"loss":5.5,"learning_rate":0.1,"gradient_norm":1.5,"loss_scale":1.0,"documents":3,)"
    R"("tokens":700,"seconds":0.5,"tokens_per_s":1400.0,"predicted_seconds":0.4,)"
    R"("planning_seconds":0.01,"late":false,"switching_seconds":0.0,"retries":0,)"
    R"("micro_batch_seconds":[0.5],"predicted_micro_batch_seconds":[0.4],"peak_bytes":1000,)"
    R"("predicted_peak_bytes":1000,"memory_per_rank":0,"micro_batches":1,"plan_sha256":"00",)"
    R"("idle":[0.1,0.2]})"
    "\n";

inline const std::vector<Reader>& readers() {
  static const std::vector<Reader> all = {
      {.name = "model/config.json",
       .sound = source_file("tests/golden/hf_llama_gqa/config.json"),
       .read = [](const fs::path& file) { read_model(file.parent_path()); }},
      {.name = "model.toml",
       .sound = source_file("configs/models/llama-0.9b.toml"),
       .read = [](const fs::path& file) { read_model(file); }},
      {.name = "video.toml",
       .sound = source_file("configs/models/stdit_text_tiny.toml"),
       .read = [](const fs::path& file) { read_model(file); }},
      {.name = "protein.toml",
       .sound = source_file("configs/models/extra-msa.toml"),
       .read = [](const fs::path& file) { read_model(file); }},
      {.name = "run.toml",
       .sound = source_file("configs/runs/demo.toml"),
       .read = [](const fs::path& file) { load_config(file, {}); }},
      {.name = "cluster.toml",
       .sound = source_file("configs/clusters/8xH100.toml"),
       .read = [](const fs::path& file) { read_cluster(file); }},
      {.name = "plan.json",
       .sound = kPlan,
       .read = [](const fs::path& file) { problems(read_plan(file)); }},
      {.name = "costs.json",
       .sound = source_file("tests/fuzz/corpus/costs.json/structured"),
       .read = [](const fs::path& file) { read_costs(file); }},
      {.name = "a.profile.jsonl",
       .sound = source_file("tests/fuzz/corpus/a.profile.jsonl/each_probe"),
       .read = [](const fs::path& file) { read_profile(file); }},
      {.name = "layers.json",
       .sound =
           R"({"options": [{"name": "a", "seconds": 1, "saved_bytes": 2, "transient_bytes": 3}]})",
       .read = [](const fs::path& file) { read_layer_costs(file); }},
      {.name = "lengths.txt",
       .sound = "5\n70\n",
       .read = [](const fs::path& file) { read_lengths(file, 512); }},
      {.name = "lengths.gz",
       .sound = source_file("tests/fuzz/corpus/lengths.gz/members"),
       .read = [](const fs::path& file) { read_lengths(file, 512); },
       .binary = true},
      {.name = "samples.txt",
       .sound = "frames=5 patches=70\npatches=3,frames=2\n",
       .read =
           [](const fs::path& file) {
             read_samples(
                 file,
                 read_model(fs::path(PARADYSE_SOURCE_DIR) / "configs/models/stdit_tiny.toml").model,
                 512);
           }},
      {.name = "data.jsonl",
       .sound = "{\"tokens\": [1, 2, 3], \"loss_mask\": [0, 1, 1]}\n{\"text\": \"abc\"}\n",
       .read = [](const fs::path& file) { read_corpus(data_at(file)); }},
      {.name = "data.json",
       .sound = "{\"tokens\": [1, 2, 3], \"labels\": [1, 2, -100]}\n",
       .read = [](const fs::path& file) { read_corpus(data_at(file)); }},
      {.name = "data.txt",
       .sound = "some text\n",
       .read = [](const fs::path& file) { read_corpus(data_at(file)); }},
      {.name = "megatron.idx",
       .sound = megatron_index({3, 2}, 8, 2),
       .read =
           [](const fs::path& file) {
             write_bytes(fs::path(file).replace_extension(".bin"), std::string(10, '\1'));
             read_corpus(data_at(file));
           },
       .binary = true},
      {.name = "megatron.bin",
       .sound = std::string("\1\0\2\0\3\0\4\0\5\0", 10),
       .read =
           [](const fs::path& file) {
             write_bytes(fs::path(file).replace_extension(".idx"), megatron_index({3, 2}, 8, 2));
             read_corpus(data_at(file));
           },
       .binary = true,
       .any_end = true},
      {.name = "llmc.bin",
       .sound = llmc_file<std::uint16_t>(20240520, 1, {50256, 1, 2, 50256, 3}),
       .read =
           [](const fs::path& file) {
             DataOptions options = data_at(file);
             options.vocab = 50257;
             read_corpus(options);
           },
       .binary = true},
      {.name = "prepared/data.json",
       .sound = kPrepared,
       .read =
           [](const fs::path& file) {
             write_bytes(file.parent_path() / "s.idx", megatron_index({3}, 8, 2));
             write_bytes(file.parent_path() / "s.bin", std::string("\1\0\2\0\3\0", 6));
             read_corpus(data_at(file.parent_path()));
           },
       .optional = true},  // then the shard is a pair of Megatron's
      {.name = "rows.a3m",
       .sound = ">a\nMKVLIERW\n>b\nMKV-aIERW\n",
       .read = [](const fs::path& file) { read_alignment_file(file); }},
      {.name = "rows.sto",
       .sound = kStockholm,
       .read = [](const fs::path& file) { read_alignment_file(file); }},
      {.name = "tokenizer_config.json",
       .sound = R"({"eos_token": "</s>", "added_tokens_decoder": {"2": {"content": "</s>"}}})",
       .read = [](const fs::path& file) { end_id_of(file.parent_path()); },
       .optional = true},
      {.name = "tokenizer.json",
       .sound = R"({"added_tokens": [{"id": 2, "content": "</s>"}]})",
       .read =
           [](const fs::path& file) {
             write_bytes(file.parent_path() / "tokenizer_config.json", R"({"eos_token": "</s>"})");
             end_id_of(file.parent_path());
             tokenizer_sha256(file.parent_path());
           },
       .optional = true},
      {.name = "weights/model.safetensors.index.json",
       .sound = R"({"weight_map": {"a": "model-00001-of-00001.safetensors"}})",
       .read =
           [](const fs::path& file) {
             const std::string header =
                 R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})";
             std::string bytes;
             put(bytes, std::uint64_t{header.size()});
             write_bytes(
                 file.parent_path() / "model-00001-of-00001.safetensors",
                 bytes + header + std::string(4, '\0'));
             weight_files(file.parent_path());
           }},
      {.name = "adapter/adapter_config.json",
       .sound = source_file("tests/fuzz/corpus/adapter_adapter_config.json/peft"),
       .read =
           [](const fs::path& file) {
             const fs::path base = file.parent_path() / "base";
             fs::create_directories(base);
             write_bytes(
                 base / "config.json", source_file("tests/golden/hf_llama_gqa/config.json"));
             read_model(file.parent_path());
           }},
      {.name = "state.json",
       .sound = sound_state(),
       .read = [](const fs::path& file) { checkpoint_state(file_text(file), file.string()); }},
      {.name = "run/config.toml", .sound = "[train]\nsteps = 8\n", .read = read_run_folder},
      {.name = "run/metrics.jsonl",
       .sound = kStep,
       .read =
           [](const fs::path& file) {
             write_bytes(file.parent_path() / "config.toml", "[train]\nsteps = 8\n");
             read_run_folder(file);
           }},
      {.name = "run/summary.json",
       .sound = R"({"steps": 0, "of_steps": 8, "interrupted": false, "eval_loss": null,
                    "best_static": null})",
       .read =
           [](const fs::path& file) {
             write_bytes(file.parent_path() / "config.toml", "[train]\nsteps = 8\n");
             read_run_folder(file);
           }},
  };
  return all;
}

}  // namespace paradyse::test
