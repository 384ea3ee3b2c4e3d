// Models come from files onto ranks and back without the loss of a bit, for every number of ranks.
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "paradyse/run/weights.h"
#include "src/plan/model/text/text_shape.h"
#include "src/run/weights/safetensors.h"
#include "tests/support/folder.h"
#include "tests/support/models.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using test::Weights;
using testing::AllOf;
using testing::HasSubstr;

const char* const kGolden[] = {
    "hf_llama_gqa",
    "hf_llama_mqa_tied",
    "hf_llama_mha_wide",
    "hf_llama_bias_llama3",
    "hf_llama_yarn_mscale",
    "hf_qwen2",
    "hf_qwen3",
    "hf_gpt2",
    "hf_opt",
    "hf_bert",
    "hf_olmo2",
    "hf_phi3",
    "hf_neox",
    "hf_neox_sequential",
    "hf_roberta",
    "hf_distilbert",
    "hf_gemma2",
    "hf_gemma3",
    "hf_modernbert",
    "hf_modernbert_biases",
    "hf_qwen2_window",
    "hf_mistral"};

fs::path golden(const std::string& name) {
  return fs::path(PARADYSE_SOURCE_DIR) / "tests" / "golden" / name;
}

std::string text_of(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

void write(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

Weights tensors_of(const fs::path& path) {
  const SafetensorsReader reader(path);
  Weights all;
  for (const auto& [name, stored] : reader.tensors()) {
    all[name] = reader.view(name).clone();
  }
  return all;
}

void expect_same(const Weights& actual, const Weights& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(actual.contains(name)) << name;
    EXPECT_EQ(actual.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(actual.at(name), tensor)) << name;
  }
}

Weights cast(Weights weights, at::ScalarType dtype) {
  for (auto& [name, tensor] : weights) {
    tensor = tensor.to(dtype);
  }
  return weights;
}

class ModelFolderTest : public testing::Test {
 protected:
  // A copy of a golden model in a folder of its own.
  [[nodiscard]] fs::path copy_of(const std::string& name, const std::string& as = "copy") const {
    const fs::path to = folder_ / as;
    fs::create_directories(to);
    for (const char* const file : {"config.json", "model.safetensors"}) {
      fs::copy_file(golden(name) / file, to / file, fs::copy_options::overwrite_existing);
    }
    return to;
  }

  // Loads `from` on `ranks` ranks in `type` and saves it to `to` in `dtype`.
  static void round_trip(
      const fs::path& from,
      const fs::path& to,
      int ranks,
      at::ScalarType type,
      at::ScalarType dtype) {
    const ModelFolder model = open_model(from);
    const SafetensorsReader reader(from);
    run_local_ranks(ranks, {}, [&](Communicators& communicators) {
      Parameters parameters(
          model.model, ranks, communicators.rank(), {.weight = type, .gradient = type}, false);
      parameters.load(reader);
      save_model(parameters, communicators.world(), to, model, dtype);
    });
  }

  // What loading `from` on two ranks says.
  static std::string load_refusal(const fs::path& from) {
    return test::refusal<std::exception>(
        [&] { round_trip(from, from / "never", 2, at::kFloat, at::kFloat); });
  }

  test::Folder folder_;
};

TEST_F(ModelFolderTest, GoldenModelsComeBackBitByBit) {
  for (const std::string name : kGolden) {
    const Weights expected = tensors_of(golden(name) / "model.safetensors");
    for (const int p : {1, 2, 3, 4}) {
      SCOPED_TRACE(name + " on " + std::to_string(p) + " ranks");
      const fs::path to = folder_ / (name + std::to_string(p));
      round_trip(golden(name), to, p, at::kFloat, at::kFloat);
      expect_same(tensors_of(to), expected);
      EXPECT_EQ(text_of(to / "config.json"), text_of(golden(name) / "config.json"));
    }
  }
}

TEST_F(ModelFolderTest, NarrowWeightsSurviveWideRanks) {
  for (const std::string name : kGolden) {
    for (const at::ScalarType stored : {at::kBFloat16, at::kHalf}) {
      const fs::path from = copy_of(name);
      const Weights expected = cast(tensors_of(golden(name)), stored);
      test::write_tensors(from / "model.safetensors", expected);
      for (const int p : {1, 3}) {
        const fs::path to = folder_ / "saved";
        fs::remove_all(to);
        round_trip(from, to, p, at::kFloat, stored);
        expect_same(tensors_of(to), expected);
      }
    }
  }
}

TEST_F(ModelFolderTest, ShardsOfAnIndexAreOneModel) {
  for (const std::string model : {"hf_llama_gqa", "hf_gpt2", "hf_bert"}) {
    const fs::path from = copy_of(model, model);
    const Weights expected = tensors_of(from);
    fs::remove(from / "model.safetensors");
    Weights shards[2];
    nlohmann::json map;
    std::size_t number = 0;
    for (const auto& [name, tensor] : expected) {
      const std::size_t shard = number++ % 2;
      shards[shard][name] = tensor;
      map[name] = "model-" + std::to_string(shard) + ".safetensors";
    }
    test::write_tensors(from / "model-0.safetensors", shards[0]);
    test::write_tensors(from / "model-1.safetensors", shards[1]);
    write(from / "model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
    ASSERT_FALSE(open_weights(open_model(from), false, 1).random());
    for (const int p : {1, 2, 3, 4}) {
      const fs::path to = folder_ / (model + "_saved" + std::to_string(p));
      round_trip(from, to, p, at::kFloat, at::kFloat);
      expect_same(tensors_of(to), expected);
    }
  }
}

// As they lie about: without the first part of the name, with norms' old names, with buffers, heads
// for other tasks and copies of tied weights.
TEST_F(ModelFolderTest, OldAndHeadlessFilesAreRead) {
  const auto expect_read = [&](const std::string& model, const Weights& stored) {
    const fs::path from = copy_of(model, model);
    test::write_tensors(from / "model.safetensors", stored);
    const fs::path to = folder_ / (model + "_saved");
    round_trip(from, to, 2, at::kFloat, at::kFloat);
    expect_same(tensors_of(to), tensors_of(golden(model)));
  };
  Weights gpt2;
  for (const auto& [name, tensor] : tensors_of(golden("hf_gpt2"))) {
    gpt2[name.substr(std::string("transformer.").size())] = tensor;
  }
  gpt2["h.0.attn.bias"] = at::ones({1, 1, 4, 4});
  gpt2["h.0.attn.masked_bias"] = at::ones({1});
  expect_read("hf_gpt2", gpt2);

  Weights bert;
  for (const auto& [today, tensor] : tensors_of(golden("hf_bert"))) {
    std::string name = today;
    for (const auto& [now, before] :
         {std::pair<std::string, std::string>{"LayerNorm.weight", "LayerNorm.gamma"},
          std::pair<std::string, std::string>{"LayerNorm.bias", "LayerNorm.beta"}}) {
      if (name.ends_with(now)) {
        name.replace(name.size() - now.size(), now.size(), before);
      }
    }
    bert[name] = tensor;
  }
  bert["cls.predictions.decoder.weight"] = bert["bert.embeddings.word_embeddings.weight"];
  bert["cls.predictions.decoder.bias"] = bert["cls.predictions.bias"];
  bert["cls.seq_relationship.weight"] = at::ones({2, 15});
  bert["bert.pooler.dense.weight"] = at::ones({15, 15});
  bert["classifier.weight"] = at::ones({3, 15});
  bert["bert.embeddings.position_ids"] = at::ones({1, 41});
  expect_read("hf_bert", bert);
}

TEST_F(ModelFolderTest, CompanionsGoAlongAndOthersDoNot) {
  const fs::path from = copy_of("hf_llama_mqa_tied");
  const std::vector<std::string> companions = {
      "tokenizer.json",
      "tokenizer_config.json",
      "special_tokens_map.json",
      "added_tokens.json",
      "generation_config.json",
      "vocab.json",
      "vocab.txt",
      "merges.txt",
      "tokenizer.model",
      "spiece.model",
      "sentencepiece.bpe.model",
      "qwen.tiktoken",
      "chat_template.jinja",
      "chat_template.json",
      "LICENSE",
      "README.md",
      "additional_chat_templates/rag.jinja"};
  const std::vector<std::string> others = {
      "optimizer.pt",
      "training_args.bin",
      "pytorch_model.bin",
      "model.gguf",
      "pytorch_model.bin.index.json",
      "adapter_config.json",
      "other.safetensors",
      "model.safetensors.part",
      ".gitattributes",
      ".git/config",
      "onnx/model.onnx",
      "runs/one/config.toml"};
  for (const auto* const names : {&companions, &others}) {
    for (const std::string& name : *names) {
      fs::create_directories((from / name).parent_path());
      write(from / name, "contents of " + name);
    }
  }
  fs::create_symlink("tokenizer.json", from / "linked.json");  // as the hub's cache has them
  fs::create_symlink("gone", from / "broken.json");
  fs::resize_file(from / "LICENSE", 5);
  std::ofstream(from / "large.txt").close();
  fs::resize_file(from / "large.txt", (std::uintmax_t{64} << 20) + 1);
  const fs::path to = folder_ / "saved";
  std::vector<std::string> notes;
  const ModelFolder model = open_model(from);
  run_local_ranks(2, {}, [&](Communicators& communicators) {
    Parameters parameters(
        model.model, 2, communicators.rank(), parameter_types(Dtype::float32), false);
    open_weights(model, false, 1).fill(parameters);
    const auto said = save_model(parameters, communicators.world(), to, model, at::kFloat);
    if (communicators.rank() == 0) {
      notes = said;
    }
  });
  for (const std::string& name : companions) {
    EXPECT_EQ(text_of(to / name), text_of(from / name)) << name;
  }
  EXPECT_EQ(text_of(to / "linked.json"), text_of(from / "tokenizer.json"));
  for (const std::string& name : others) {
    EXPECT_FALSE(fs::exists(to / name)) << name;
  }
  EXPECT_EQ(text_of(to / "config.json"), text_of(from / "config.json"));
  ASSERT_EQ(notes.size(), 2);
  EXPECT_THAT(notes[0], AllOf(HasSubstr("large.txt"), HasSubstr("onnx/"), HasSubstr("runs/")));
  EXPECT_THAT(notes[1], HasSubstr("broken.json"));
}

TEST_F(ModelFolderTest, NothingIsOverwrittenAndNoRankWaits) {
  const fs::path to = copy_of("hf_llama_gqa", "taken");
  write(to / "config.json", "mine");
  for (const int p : {1, 3}) {
    EXPECT_THAT(
        test::refusal<std::exception>(
            [&] { round_trip(golden("hf_llama_gqa"), to, p, at::kFloat, at::kFloat); }),
        AllOf(HasSubstr(to.string()), HasSubstr("not overwritten")));
  }
  EXPECT_EQ(text_of(to / "config.json"), "mine");
  // A file stands where the folder would be.
  write(folder_ / "file", "");
  EXPECT_THAT(
      test::refusal<std::exception>([&] {
        round_trip(golden("hf_llama_gqa"), folder_ / "file" / "to", 2, at::kFloat, at::kFloat);
      }),
      HasSubstr("file"));
}

TEST_F(ModelFolderTest, WeightsThatDoNotFitTheConfigurationAreNamed) {
  const fs::path from = copy_of("hf_llama_gqa");
  const Weights whole = tensors_of(golden("hf_llama_gqa"));
  const std::string name = "model.layers.1.mlp.down_proj.weight";

  Weights weights = whole;
  weights.erase(name);
  test::write_tensors(from / "model.safetensors", weights);
  EXPECT_THAT(load_refusal(from), HasSubstr(name));

  weights = whole;
  weights[name] = weights[name].t().contiguous();
  test::write_tensors(from / "model.safetensors", weights);
  EXPECT_THAT(load_refusal(from), AllOf(HasSubstr(name), HasSubstr("[40, 24]")));

  weights = whole;
  weights["model.layers.1.self_attn.q_proj.bias"] = at::zeros({24});
  test::write_tensors(from / "model.safetensors", weights);
  EXPECT_THAT(load_refusal(from), HasSubstr("q_proj.bias"));

  weights = whole;  // as AutoModel saves it
  weights.erase("lm_head.weight");
  test::write_tensors(from / "model.safetensors", weights);
  EXPECT_THAT(
      load_refusal(from), AllOf(HasSubstr("lm_head.weight"), HasSubstr("AutoModelForCausalLM")));
}

TEST_F(ModelFolderTest, ATiedCopyInTheFileIsNoSecondParameter) {
  const fs::path from = copy_of("hf_llama_mqa_tied");
  const Weights expected = tensors_of(from);
  Weights weights = expected;
  weights["lm_head.weight"] = weights["model.embed_tokens.weight"];
  test::write_tensors(from / "model.safetensors", weights);
  const fs::path to = folder_ / "saved";
  round_trip(from, to, 3, at::kFloat, at::kFloat);
  expect_same(tensors_of(to), expected);
}

TEST_F(ModelFolderTest, TomlFilesAndFoldersWithoutWeightsAreModels) {
  const fs::path toml = folder_ / "tiny.toml";
  write(
      toml,
      "model_type = 'llama'\nhidden_size = 24\nnum_hidden_layers = 2\nnum_attention_heads = 6\n"
      "num_key_value_heads = 2\nintermediate_size = 40\nvocab_size = 37\nrms_norm_eps = 1e-5\n"
      "tie_word_embeddings = false\n[rope_parameters]\nrope_theta = 50000.0\n");
  const ModelFolder from_toml = open_model(toml);
  EXPECT_TRUE(open_weights(from_toml, false, 3).random());
  EXPECT_THAT(open_weights(from_toml, false, 3).said, HasSubstr("random (seed 3)"));
  EXPECT_EQ(nlohmann::json::parse(from_toml.model.config)["hidden_size"], 24);
  EXPECT_EQ(from_toml.model.sha256, open_model(golden("hf_llama_gqa")).model.sha256);

  // Saved: config_of its shape, which opens as the same model.
  const fs::path to = folder_ / "saved";
  run_local_ranks(2, {}, [&](Communicators& communicators) {
    Parameters parameters(
        from_toml.model, 2, communicators.rank(), parameter_types(Dtype::float32), false);
    parameters.initialize(1);
    save_model(parameters, communicators.world(), to, from_toml, at::kFloat);
  });
  EXPECT_EQ(open_model(to).model.config, from_toml.model.config);
  EXPECT_FALSE(open_weights(open_model(to), false, 1).random());
  EXPECT_EQ(
      text_of(to / "config.json"), nlohmann::json::parse(from_toml.model.config).dump(2) + "\n");

  fs::remove(to / "model.safetensors");
  EXPECT_THAT(
      test::refusal<std::exception>([&] { open_weights(open_model(to), false, 1); }),
      AllOf(HasSubstr("--random-weights"), HasSubstr("model.random_weights")));
  EXPECT_TRUE(open_weights(open_model(to), true, 1).random());
}

// No folder is trained at random because its weights were not found: each kind is named with what
// to do.
TEST_F(ModelFolderTest, WeightsThatAreNotReadAreNamed) {
  const fs::path from = copy_of("hf_llama_gqa");
  const fs::path file = from / "model.safetensors";
  const std::string bytes = text_of(file);
  const auto said = [&] {
    return test::refusal<std::exception>([&] { open_weights(open_model(from), false, 1); });
  };
  const auto clean = [&] {
    for (const auto& entry : fs::directory_iterator(from)) {
      if (entry.path().filename() != "config.json") {
        fs::remove_all(entry.path());
      }
    }
  };
  for (const auto& [name, remedy] :
       {std::pair{"pytorch_model.bin", "save_pretrained"},
        {"pytorch_model-00001-of-00002.bin", "save_pretrained"},
        {"consolidated.00.pth", "save_file"},
        {"weights.pt", "save_file"},
        {"model.ckpt", "save_file"},
        {"model.ckpt.data-00000-of-00001", "safetensors"},
        {"model-Q4.gguf", "gguf_file"},
        {"tf_model.h5", "from_tf"},
        {"flax_model.msgpack", "from_flax"},
        {"weights.npz", "numpy"},
        {"model.onnx", "safetensors"},
        {"weights.safetensors", "rename"},
        {"model.fp16.safetensors", "rename"},
        {"MODEL.SAFETENSORS", "rename"},
        {"adapter_model.safetensors", "merge_and_unload"},
        {"model.safetensors.incomplete", "fetch it again"},
        {"model.safetensors.part", "fetch it again"},
        {"model.safetensors.crdownload", "fetch it again"},
        {"model-00001-of-00002.safetensors", "missing is number 2"}}) {
    clean();
    write(from / name, bytes);
    EXPECT_THAT(said(), AllOf(HasSubstr(from.string()), HasSubstr(name), HasSubstr(remedy)));
    EXPECT_TRUE(open_weights(open_model(from, true), true, 1).random());
  }
  clean();
  fs::create_directories(from / "original");
  write(from / "original" / "model.safetensors", bytes);
  EXPECT_THAT(said(), HasSubstr("original/model.safetensors"));
  write(from / "pytorch_model.bin", bytes);  // several: each
  EXPECT_THAT(said(), AllOf(HasSubstr("original/model"), HasSubstr("pytorch_model.bin")));
  clean();
  fs::create_directories(from / ".cache" / "huggingface" / "download");
  write(from / ".cache" / "huggingface" / "download" / "x.incomplete", "");
  EXPECT_THAT(said(), HasSubstr("x.incomplete"));

  clean();
  fs::create_symlink(from / "blobs" / "gone", file);
  EXPECT_THAT(said(), AllOf(HasSubstr("link"), HasSubstr("gone"), HasSubstr("not there")));
  fs::remove(file);
  fs::create_directories(file);
  EXPECT_THAT(said(), HasSubstr("not a regular file"));
  fs::remove(file);
  write(file, "");
  EXPECT_THAT(said(), HasSubstr("is empty"));
  write(file, "version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 3\n");
  EXPECT_THAT(said(), AllOf(HasSubstr("Git LFS"), HasSubstr("git lfs pull")));
  write(file, bytes.substr(0, bytes.size() - 4));
  EXPECT_THAT(said(), AllOf(HasSubstr(file.string()), HasSubstr("fetch it again")));

  // An index without its files, beside a begun download; and with both, beside the whole.
  clean();
  const fs::path index = from / "model.safetensors.index.json";
  write(index, R"({"weight_map": {"lm_head.weight": "model-1.safetensors"}})");
  write(from / "model-1.safetensors.incomplete", "");
  EXPECT_THAT(
      said(),
      AllOf(
          HasSubstr(index.string()),
          HasSubstr("model-1.safetensors, which is not there"),
          HasSubstr("model-1.safetensors.incomplete")));
  write(file, bytes);
  const ModelWeights leftover = open_weights(open_model(from), false, 1);
  EXPECT_FALSE(leftover.random());
  EXPECT_THAT(leftover.notes.front(), HasSubstr("not there"));
  write(from / "model-1.safetensors", bytes);
  EXPECT_THAT(said(), HasSubstr("two sets of weights"));
  fs::remove(index);
  EXPECT_THAT(
      open_weights(open_model(from), false, 1).notes.front(),
      AllOf(HasSubstr("model-1.safetensors"), HasSubstr("not read")));
  EXPECT_THAT(open_weights(open_model(from, true), true, 1).said, HasSubstr("not read"));

  // Bare: only by the flag.
  clean();
  write(from / "tokenizer.json", "{}");
  write(from / "training_args.bin", "state of a training");
  EXPECT_THAT(
      said(), AllOf(HasSubstr("--random-weights"), testing::Not(HasSubstr("training_args"))));
}

TEST_F(ModelFolderTest, ShardsWithoutAnIndexAreReadTogether) {
  const fs::path from = copy_of("hf_llama_gqa");
  const Weights expected = tensors_of(from);
  fs::remove(from / "model.safetensors");
  Weights shards[2];
  std::size_t number = 0;
  for (const auto& [name, tensor] : expected) {
    shards[number++ % 2][name] = tensor;
  }
  const fs::path first = from / "model-00001-of-00002.safetensors";
  test::write_tensors(first, shards[0]);
  test::write_tensors(from / "model-00002-of-00002.safetensors", shards[1]);
  const ModelWeights weights = open_weights(open_model(from), false, 1);
  EXPECT_THAT(weights.notes.front(), HasSubstr("read together"));
  for (const auto& [name, tensor] : expected) {
    EXPECT_TRUE(at::equal(weights.reader->view(name), tensor)) << name;
  }
  shards[0].insert(shards[1].begin(), shards[1].end());
  test::write_tensors(first, shards[0]);
  EXPECT_THAT(
      test::refusal<std::exception>([&] { open_weights(open_model(from), false, 1); }),
      HasSubstr("has too"));
}

// As Transformers 5 takes it: the head that is there is used and trained, and comes back from a
// saved model.
TEST_F(ModelFolderTest, ATiedModelWithAnotherHeadIsUntied) {
  for (const std::string model :
       {"hf_llama_mqa_tied",
        "hf_qwen2",
        "hf_gpt2",
        "hf_opt",
        "hf_bert",
        "hf_roberta",
        "hf_distilbert",
        "hf_gemma2",
        "hf_gemma3",
        "hf_modernbert"}) {
    SCOPED_TRACE(model);
    const fs::path from = copy_of(model, model);
    const ModelFolder tied = open_model(from);
    ASSERT_TRUE(tied.model.tied());
    const auto named = [](const ModelPart& part) {
      const PartWeights weights = part.part->weights(1);
      return layer_prefix(weights, part.layer) + weights.matrices.front().stored_as;
    };
    const std::string embedding = named(tied.model.parts.front());
    const std::string head = named(tied.model.parts.back());
    const Weights whole = tensors_of(from);
    Weights other = whole;
    other[head] = whole.at(embedding) + 1;
    test::write_tensors(from / "model.safetensors", other);
    const ModelFolder untied = open_model(from);
    EXPECT_FALSE(untied.model.tied());
    ASSERT_EQ(untied.notes.size(), 1);
    EXPECT_THAT(untied.notes[0], AllOf(HasSubstr(head), HasSubstr("untied")));
    EXPECT_TRUE(open_model(from, true).model.tied());  // the file is not asked
    const fs::path to = folder_ / (model + "_saved");
    round_trip(from, to, 2, at::kFloat, at::kFloat);
    EXPECT_TRUE(at::equal(tensors_of(to).at(head), other.at(head)));
    EXPECT_TRUE(at::equal(tensors_of(to).at(embedding), other.at(embedding)));
    const ModelFolder again = open_model(to);
    EXPECT_FALSE(again.model.tied());
    EXPECT_TRUE(again.notes.empty());
    EXPECT_EQ(nlohmann::json::parse(again.config_text).at("tie_word_embeddings"), false);
    open_weights(again, false, 1);

    // The head alone stands for both.
    other = whole;
    other[head] = other.at(embedding);
    other.erase(embedding);
    test::write_tensors(from / "model.safetensors", other);
    EXPECT_TRUE(open_model(from).model.tied());
    EXPECT_THAT(
        open_weights(open_model(from), false, 1).notes.front(), HasSubstr("tied to it, for both"));
    fs::remove_all(to);
    round_trip(from, to, 2, at::kFloat, at::kFloat);
    expect_same(tensors_of(to), whole);
  }
}

// transformers 5 calls the head of a GPT-NeoX lm_head, earlier versions embed_out.
TEST_F(ModelFolderTest, ATiedModelWithAHeadOfItsNewNameIsUntied) {
  const fs::path from = copy_of("hf_neox");
  nlohmann::json config = nlohmann::json::parse(text_of(from / "config.json"));
  config["tie_word_embeddings"] = true;
  write(from / "config.json", config.dump());
  Weights renamed = tensors_of(from);
  const at::Tensor head = renamed.at("embed_out.weight");
  renamed.erase("embed_out.weight");
  renamed["lm_head.weight"] = head;
  test::write_tensors(from / "model.safetensors", renamed);
  const ModelFolder untied = open_model(from);
  EXPECT_FALSE(untied.model.tied());
  EXPECT_THAT(
      untied.notes, testing::ElementsAre(AllOf(HasSubstr("lm_head.weight"), HasSubstr("untied"))));
  const fs::path to = folder_ / "saved";
  round_trip(from, to, 2, at::kFloat, at::kFloat);
  EXPECT_TRUE(at::equal(tensors_of(to).at("embed_out.weight"), head));
  renamed["lm_head.weight"] = renamed.at("gpt_neox.embed_in.weight");
  test::write_tensors(from / "model.safetensors", renamed);
  EXPECT_TRUE(open_model(from).model.tied());
}

// What an index does not name is read, as transformers 5 does, and said.
TEST_F(ModelFolderTest, WhatAnIndexLeavesOutIsReadOrNamed) {
  const fs::path from = copy_of("hf_llama_mqa_tied");
  Weights stored = tensors_of(from);
  nlohmann::json map;
  for (const auto& [name, tensor] : stored) {
    map[name] = "model-00001-of-00001.safetensors";
  }
  stored["lm_head.weight"] = stored.at("model.embed_tokens.weight") + 1;
  stored["model.extra.weight"] = at::ones({2});
  fs::remove(from / "model.safetensors");
  test::write_tensors(from / "model-00001-of-00001.safetensors", stored);
  write(from / "model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
  const ModelFolder folder = open_model(from);
  EXPECT_FALSE(folder.model.tied());
  EXPECT_THAT(
      open_weights(folder, false, 1).notes,
      testing::ElementsAre(
          HasSubstr("lm_head.weight differs"),
          AllOf(
              HasSubstr("has lm_head.weight"), HasSubstr("not name"), HasSubstr("like the others")),
          AllOf(HasSubstr("has model.extra.weight"), HasSubstr("not read"))));
  const fs::path to = folder_ / "saved";
  round_trip(from, to, 2, at::kFloat, at::kFloat);
  EXPECT_TRUE(at::equal(tensors_of(to).at("lm_head.weight"), stored.at("lm_head.weight")));
}

TEST_F(ModelFolderTest, AFileOfWeightsThatTheConfigurationNamesIsNotPassedOver) {
  const fs::path from = copy_of("hf_llama_gqa");
  nlohmann::json config = nlohmann::json::parse(text_of(from / "config.json"));
  const auto name = [&](const nlohmann::json& file) {
    config["transformers_weights"] = file;
    write(from / "config.json", config.dump());
    return test::refusal<std::exception>([&] { open_weights(open_model(from), false, 1); });
  };
  EXPECT_EQ(name("model.safetensors"), "");
  EXPECT_EQ(name(nullptr), "");
  for (const nlohmann::json& other :
       std::vector<nlohmann::json>{"other.safetensors", "model.safetensors.index.json", "", 1}) {
    EXPECT_THAT(
        name(other),
        AllOf(
            HasSubstr("config.json"),
            HasSubstr("transformers_weights is " + other.dump()),
            HasSubstr("reads model.safetensors")));
  }
  EXPECT_TRUE(open_weights(open_model(from), true, 1).random());  // no file is read
  // What is saved is in another file.
  name("model.safetensors");
  const fs::path to = folder_ / "saved";
  round_trip(from, to, 2, at::kFloat, at::kFloat);
  EXPECT_FALSE(nlohmann::json::parse(text_of(to / "config.json")).contains("transformers_weights"));
}

TEST_F(ModelFolderTest, AMissingHeadIsCalledOne) {
  for (const auto& [model, head] :
       {std::pair<std::string, std::string>{"hf_modernbert", "decoder.bias"},
        std::pair<std::string, std::string>{"hf_modernbert", "head.dense.weight"},
        std::pair<std::string, std::string>{"hf_distilbert", "vocab_projector.bias"},
        std::pair<std::string, std::string>{"hf_llama_gqa", "lm_head.weight"}}) {
    const fs::path from = copy_of(model, model);
    Weights stored = tensors_of(golden(model));
    ASSERT_EQ(stored.erase(head), 1) << head;
    test::write_tensors(from / "model.safetensors", stored);
    EXPECT_THAT(load_refusal(from), AllOf(HasSubstr(head), HasSubstr("without its head")));
  }
}

// Two biases of BERT's head: the one under the head's name counts.
TEST_F(ModelFolderTest, TheBiasOfBertsDecoderCounts) {
  const fs::path from = copy_of("hf_bert");
  const Weights whole = tensors_of(from);
  const char* const bias = "cls.predictions.bias";
  const char* const decoder = "cls.predictions.decoder.bias";
  Weights other = whole;
  other[decoder] = whole.at(bias) + 1;
  test::write_tensors(from / "model.safetensors", other);
  EXPECT_THAT(open_weights(open_model(from), false, 1).notes.front(), HasSubstr("differ"));
  const fs::path to = folder_ / "saved";
  round_trip(from, to, 1, at::kFloat, at::kFloat);
  EXPECT_TRUE(at::equal(tensors_of(to).at(bias), other.at(decoder)));
  other.erase(bias);
  test::write_tensors(from / "model.safetensors", other);
  EXPECT_TRUE(open_weights(open_model(from), false, 1).notes.empty());
}

TEST_F(ModelFolderTest, BertsOfPreTrainingLeaveTheirOtherHeadOut) {
  const fs::path from = copy_of("hf_bert");
  nlohmann::json config = nlohmann::json::parse(text_of(from / "config.json"));
  config["architectures"] = {"BertForPreTraining"};
  write(from / "config.json", config.dump());
  const Weights whole = tensors_of(from);
  Weights stored = whole;
  stored["cls.seq_relationship.weight"] = at::ones({2, 15});
  stored["cls.seq_relationship.bias"] = at::ones({2});
  stored["bert.pooler.dense.weight"] = at::ones({15, 15});
  stored["bert.pooler.dense.bias"] = at::ones({15});
  test::write_tensors(from / "model.safetensors", stored);
  EXPECT_THAT(
      open_weights(open_model(from), false, 1).notes.front(),
      AllOf(HasSubstr("left out"), HasSubstr("seq_relationship"), HasSubstr("pooler")));
  const fs::path to = folder_ / "saved";
  round_trip(from, to, 2, at::kFloat, at::kFloat);
  expect_same(tensors_of(to), whole);
  EXPECT_EQ(
      nlohmann::json::parse(open_model(to).config_text).at("architectures").at(0),
      "BertForMaskedLM");
}

TEST_F(ModelFolderTest, WhatIsNoModelIsNamed) {
  const auto said = [](const fs::path& path) {
    return test::refusal<std::exception>([&] { open_model(path); });
  };
  EXPECT_THAT(said(folder_ / "nowhere"), AllOf(HasSubstr("nowhere"), HasSubstr("not there")));
  EXPECT_THAT(said(folder_), HasSubstr("without config.json"));
  EXPECT_THAT(said(golden("hf_llama_gqa") / "config.json"), HasSubstr(".toml"));
  write(folder_ / "config.json", "{\"model_type\": ");
  EXPECT_THAT(said(folder_), AllOf(HasSubstr("config.json"), HasSubstr("not JSON")));
  write(folder_ / "bad.toml", "hidden_size = 3\nhidden_size = 4\n");
  EXPECT_THAT(said(folder_ / "bad.toml"), HasSubstr("bad.toml:2"));
  write(folder_ / "bad.toml", "hidden_sise = 3\n");
  EXPECT_THAT(said(folder_ / "bad.toml"), AllOf(HasSubstr("bad.toml"), HasSubstr("hidden_size")));
}

// Random weights are a function of seed, name and row alone, and normal.
TEST_F(ModelFolderTest, RandomWeightsAreTheSameForEveryNumberOfRanks) {
  for (const bool tied : {false, true}) {
    TextShape model = test::llama(
        {.heads = 6, .kv_heads = 2, .hidden = 50, .ffn = 67, .vocab = 101, .tied = tied});
    model.initializer_range = 0.05;
    const auto weights = [&](int ranks, std::uint64_t seed) {
      Weights all;
      run_local_ranks(ranks, {}, [&](Communicators& communicators) {
        Parameters parameters(
            text_model(model), ranks, communicators.rank(), parameter_types(Dtype::float32), false);
        parameters.initialize(seed);
        collect(
            parameters,
            Which::weights,
            communicators.world(),
            [&](const std::string& name, const at::Tensor& tensor) { all[name] = tensor.clone(); });
      });
      return all;
    };
    const Weights expected = weights(1, 5);
    for (const int p : {2, 3, 4}) {
      SCOPED_TRACE(p);
      expect_same(weights(p, 5), expected);
    }
    EXPECT_EQ(expected.contains("lm_head.weight"), !tied);
    const Weights others = weights(1, 6);
    for (const auto& [name, tensor] : expected) {
      SCOPED_TRACE(name);
      if (tensor.dim() == 1) {
        EXPECT_TRUE(tensor.eq(1).all().item<bool>());
        continue;
      }
      EXPECT_FALSE(at::equal(tensor, others.at(name)));
      const double n = static_cast<double>(tensor.numel());
      EXPECT_NEAR(tensor.mean().item<double>(), 0, 5 * 0.05 / std::sqrt(n));
      EXPECT_NEAR(tensor.std().item<double>(), 0.05, 5 * 0.05 / std::sqrt(2 * n));
      // Neither rows nor columns are alike: |correlation| of neighbours stays near 0.
      const at::Tensor unit = tensor.to(at::kDouble) / 0.05;
      const auto across =
          (unit.narrow(0, 1, unit.size(0) - 1) * unit.narrow(0, 0, unit.size(0) - 1)).mean();
      const auto along =
          (unit.narrow(1, 1, unit.size(1) - 1) * unit.narrow(1, 0, unit.size(1) - 1)).mean();
      EXPECT_NEAR(across.item<double>(), 0, 5 / std::sqrt(n));
      EXPECT_NEAR(along.item<double>(), 0, 5 / std::sqrt(n));
    }
  }
}

}  // namespace
}  // namespace paradyse
