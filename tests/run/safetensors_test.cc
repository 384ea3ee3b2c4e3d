#include "src/run/weights/safetensors.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/folder.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

using Declared = std::vector<std::pair<std::string, StoredTensor>>;
using Tensors = std::vector<std::pair<std::string, at::Tensor>>;

// Every test has a folder of its own.
class Safetensors : public testing::Test {
 protected:
  [[nodiscard]] fs::path path(const std::string& name = "a.safetensors") const {
    return folder_ / name;
  }

  void write_file(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
  }

  [[nodiscard]] std::string content(const std::string& name) const {
    std::ostringstream bytes;
    bytes << std::ifstream(path(name), std::ios::binary).rdbuf();
    return bytes.str();
  }

  [[nodiscard]] std::vector<std::string> listing() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  // Reading `name` is refused with a message that names the file and says each of `parts`.
  template <class... Parts>
  void expect_refused(const std::string& name, const Parts&... parts) const {
    const std::string why =
        test::refusal<std::runtime_error>([&] { const SafetensorsReader reader(path(name)); });
    EXPECT_THAT(why, AllOf(HasSubstr(folder_.string()), HasSubstr(parts)...)) << name;
    EXPECT_LT(why.size(), 1000U);
  }

  // The same for a file of this header and data.
  template <class... Parts>
  void expect_header_refused(
      const std::string& header, const std::string& data, const Parts&... parts) const {
    SCOPED_TRACE(header.substr(0, 200));
    write_file("a.safetensors", length_of(header.size()) + header + data);
    expect_refused("a.safetensors", parts...);
  }

  static std::string length_of(std::uint64_t length) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    return bytes;
  }

 private:
  test::Folder folder_;
};

StoredTensor declared(at::ScalarType dtype, std::vector<std::int64_t> shape) {
  return {dtype, std::move(shape), 0, 0};
}

void write_all(const fs::path& path, const Tensors& tensors) {
  Declared all;
  for (const auto& [name, tensor] : tensors) {
    all.emplace_back(name, declared(tensor.scalar_type(), tensor.sizes().vec()));
  }
  SafetensorsWriter writer(path, all);
  for (const auto& [name, tensor] : tensors) {
    writer.write(name, tensor);
  }
  writer.finish();
}

std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  return {static_cast<const char*>(dense.data_ptr()), dense.nbytes()};
}

// A tensor with every bit pattern its type may have (a BOOL has two).
at::Tensor any_bits(at::ScalarType dtype, const std::vector<std::int64_t>& shape) {
  at::Tensor tensor = at::empty(shape, dtype);
  auto* const bytes = static_cast<unsigned char*>(tensor.data_ptr());
  for (std::size_t i = 0; i < tensor.nbytes(); ++i) {
    bytes[i] = static_cast<unsigned char>(dtype == at::kBool ? i % 2 : i * 167 + 13);
  }
  return tensor;
}

constexpr std::array kDtypes = {
    at::kDouble,
    at::kFloat,
    at::kHalf,
    at::kBFloat16,
    at::kLong,
    at::kInt,
    at::kShort,
    at::kChar,
    at::kByte,
    at::kBool,
    at::kUInt16,
    at::kUInt32,
    at::kUInt64,
    at::kFloat8_e5m2,
    at::kFloat8_e4m3fn,
    at::kComplexFloat,
};

// What was written is read back bit by bit, in whatever order and alignment.
TEST_F(Safetensors, ReadsWhatWasWritten) {
  const std::vector<std::vector<std::int64_t>> shapes = {
      {}, {3}, {0}, {2, 0, 5}, {2, 3, 5}, {1, 1}};
  Tensors tensors;
  for (const at::ScalarType dtype : kDtypes) {
    for (const auto& shape : shapes) {
      tensors.emplace_back("t." + std::to_string(tensors.size()), any_bits(dtype, shape));
    }
  }
  const auto expect_same = [&](const SafetensorsReader& reader) {
    ASSERT_EQ(reader.tensors().size(), tensors.size());
    for (const auto& [name, tensor] : tensors) {
      ASSERT_TRUE(reader.contains(name));
      const StoredTensor& stored = reader.tensors().at(name);
      EXPECT_EQ(stored.dtype, tensor.scalar_type()) << name;
      EXPECT_EQ(stored.shape, tensor.sizes().vec()) << name;
      EXPECT_EQ(stored.end - stored.begin, tensor.nbytes()) << name;
      const at::Tensor view = reader.view(name);
      EXPECT_EQ(view.scalar_type(), tensor.scalar_type()) << name;
      EXPECT_EQ(view.sizes(), tensor.sizes()) << name;
      EXPECT_EQ(bytes_of(view), bytes_of(tensor)) << name;
      const auto address = reinterpret_cast<std::uintptr_t>(view.data_ptr());
      EXPECT_EQ(address % static_cast<std::uintptr_t>(tensor.element_size()), 0U) << name;
    }
  };
  write_all(path(), tensors);
  expect_same(SafetensorsReader(path()));
  EXPECT_EQ(SafetensorsReader(path()).metadata().at("format"), "pt");

  std::reverse(tensors.begin(), tensors.end());
  write_all(path(), tensors);  // replaces the first
  SafetensorsReader reader(path());
  expect_same(reader);
  const SafetensorsReader moved(std::move(reader));
  expect_same(moved);
  EXPECT_EQ(listing(), std::vector<std::string>{"a.safetensors"});
}

TEST_F(Safetensors, SlicesOfAView) {
  const at::Tensor whole = at::arange(24, at::kFloat).reshape({4, 6});
  write_all(path(), {{"w", whole}});
  const SafetensorsReader reader(path());
  EXPECT_TRUE(at::equal(reader.view("w").slice(1, 2, 5).clone(), whole.slice(1, 2, 5)));
  EXPECT_EQ(reader.view("w").data_ptr(), reader.view("w").data_ptr());  // one memory, not copies
}

TEST_F(Safetensors, WritesStridedTensorsDense) {
  const at::Tensor whole = at::arange(6, at::kDouble).reshape({2, 3});
  write_all(path(), {{"w", whole.t()}});
  EXPECT_TRUE(at::equal(SafetensorsReader(path()).view("w"), whole.t()));
}

// A file as the reference implementation of the format writes it.
TEST_F(Safetensors, IsTheFormat) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"x":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}} )";
  const std::string data("\x01\0\0\0\xfe\xff\xff\xff", 8);
  write_file("a.safetensors", length_of(header.size()) + header + data);
  const SafetensorsReader reader(path());
  EXPECT_TRUE(at::equal(reader.view("x"), at::tensor({1, -2}, at::kInt)));
  EXPECT_EQ(reader.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));

  write_all(path("b.safetensors"), {{"x", at::tensor({1, -2}, at::kInt)}});
  const std::string written = content("b.safetensors");
  std::uint64_t length = 0;
  std::memcpy(&length, written.data(), 8);
  EXPECT_EQ(length % 8, 0);
  ASSERT_EQ(written.size(), 8 + length + data.size());
  EXPECT_EQ(written.substr(8 + length), data);
}

TEST_F(Safetensors, AFileMayHoldNothing) {
  write_all(path(), {});
  EXPECT_TRUE(SafetensorsReader(path()).tensors().empty());
  SafetensorsWriter writer(path("b.safetensors"), {}, {});
  writer.finish();
  EXPECT_TRUE(SafetensorsReader(path("b.safetensors")).metadata().empty());
}

TEST_F(Safetensors, NamesTheNearestTensor) {
  write_all(path(), {{"model.norm.weight", at::ones({2})}});
  const SafetensorsReader reader(path());
  EXPECT_FALSE(reader.contains("model.nrom.weight"));
  EXPECT_THAT(
      [&] { (void)reader.view("model.nrom.weight"); },
      testing::ThrowsMessage<std::runtime_error>(
          AllOf(HasSubstr(path().string()), HasSubstr("did you mean 'model.norm.weight'?"))));
}

TEST_F(Safetensors, RefusesWhatIsNoFile) {
  expect_refused("none.safetensors", "is not there");
  expect_refused("", "neither model.safetensors nor model.safetensors.index.json");
  fs::create_directory(path("model.safetensors"));
  expect_refused("", "it is a folder");
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  expect_refused("pipe", "it is a pipe");
}

TEST_F(Safetensors, RefusesAWrongHeaderLength) {
  write_file("a.safetensors", "");
  expect_refused("a.safetensors", "0 bytes");
  write_file("a.safetensors", "1234567");
  expect_refused("a.safetensors", "7 bytes");
  write_file("a.safetensors", length_of(0));
  expect_refused("a.safetensors", "does not begin with '{'");
  write_file("a.safetensors", length_of(3) + "{}");
  expect_refused("a.safetensors", "header of 3 bytes", "only 2 follow", "cut short");
  write_file("a.safetensors", length_of(100'000'001) + "{}");
  expect_refused("a.safetensors", "100000001", "100000000");
  for (const std::uint64_t length :
       {std::numeric_limits<std::uint64_t>::max(),
        std::numeric_limits<std::uint64_t>::max() - 7,
        std::uint64_t{1} << 63}) {
    write_file("a.safetensors", length_of(length) + "{}");
    expect_refused("a.safetensors", std::to_string(length), "100000000");
  }
}

TEST_F(Safetensors, RefusesAHeaderThatIsNoJsonObject) {
  for (const char* header : {"[]", "null", "\"x\"", " {}", "\xef\xbb\xbf{}"}) {
    expect_header_refused(header, "", "does not begin with '{'");
  }
  for (const char* header :
       {"{",
        "{}{}",
        "{\"a\"}",
        "{\"a\":1,}",
        "{a:1}",
        "{\"\xff\":1}",
        "{\"a\":1e999}",
        "{\"a\":nan}"}) {
    expect_header_refused(header, "", "not JSON");
  }
  const std::size_t deep = 1'000'000;
  expect_header_refused("{\"a\":" + std::string(deep, '['), "", "nests deeper");
  expect_header_refused(
      "{\"a\":" + std::string(deep, '[') + std::string(deep, ']') + "}", "", "nests deeper");
  std::string objects = "{\"a\":1}";
  for (int i = 0; i < 100; ++i) {
    objects = "{\"a\":" + objects + "}";
  }
  expect_header_refused(objects, "", "nests deeper");
}

constexpr const char* kX = R"("x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";

TEST_F(Safetensors, RefusesANameTwice) {
  const std::string x = kX;
  expect_header_refused("{" + x + "," + x + "}", "1234", "\"x\" twice");
  expect_header_refused(
      R"({"x":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}})",
      "1234",
      "\"dtype\" twice");
  expect_header_refused(
      R"({"__metadata__":{},)" + x + R"(,"__metadata__":{}})", "1234", "\"__metadata__\" twice");
  // the same name written in another way
  expect_header_refused("{" + x + R"(,"\u0078":)" + x.substr(4) + "}", "1234", "\"x\" twice");
  // but members of different objects may be alike
  const std::string header = R"({"__metadata__":{"x":"1"},)" + x +
                             R"(,"y":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}})";
  write_file("a.safetensors", length_of(header.size()) + header + "1234");
  EXPECT_EQ(SafetensorsReader(path()).tensors().size(), 2);
}

TEST_F(Safetensors, RefusesAWrongDescription) {
  const auto refused = [&](const std::string& entry, const auto&... parts) {
    expect_header_refused("{\"x\":" + entry + "}", "12345678", "\"x\"", parts...);
  };
  refused("5", "dtype, shape and data_offsets");
  refused(R"({"shape":[8],"data_offsets":[0,8]})", "dtype, shape and data_offsets");
  refused(R"({"dtype":"U8","shape":[8]})", "dtype, shape and data_offsets");
  refused(
      R"({"dtype":"U8","shape":[8],"data_offsets":[0,8],"stride":[2]})",
      "dtype, shape and data_offsets");
  refused(R"({"dtype":"F128","shape":[8],"data_offsets":[0,8]})", "dtype \"F128\"", "BF16");
  refused(R"({"dtype":8,"shape":[8],"data_offsets":[0,8]})", "dtype 8");
  refused(R"({"dtype":"u8","shape":[8],"data_offsets":[0,8]})", "dtype \"u8\"");
  refused(R"({"dtype":"U8","shape":8,"data_offsets":[0,8]})", "shape 8");
  refused(R"({"dtype":"U8","shape":["8"],"data_offsets":[0,8]})", "shape [\"8\"]");
  refused(R"({"dtype":"U8","shape":[8.0],"data_offsets":[0,8]})", "shape [8.0]");
  refused(R"({"dtype":"U8","shape":[-8],"data_offsets":[0,8]})", "[-8]", "negative");
  refused(R"({"dtype":"U8","shape":[-2,-4],"data_offsets":[0,8]})", "[-2,-4]", "negative");
  refused(R"({"dtype":"U8","shape":[8],"data_offsets":8})", "data_offsets 8");
  refused(R"({"dtype":"U8","shape":[8],"data_offsets":[0]})", "[begin, end]");
  refused(R"({"dtype":"U8","shape":[8],"data_offsets":[0,8,8]})", "[begin, end]");
  refused(R"({"dtype":"U8","shape":[8],"data_offsets":[-8,0]})", "-8");
  refused(R"({"dtype":"U8","shape":[8],"data_offsets":[0,8.0]})", "8.0");
  refused(R"({"dtype":"U8","shape":[8],"data_offsets":[8,0]})", "[8,0]", "takes 8 bytes");
  refused(R"({"dtype":"F32","shape":[8],"data_offsets":[0,8]})", "[0,8]", "F32", "takes 32 bytes");
  refused(R"({"dtype":"F32","shape":[],"data_offsets":[0,8]})", "takes 4 bytes");
  refused(R"({"dtype":"U8","shape":[0,8],"data_offsets":[0,8]})", "takes 0 bytes");
}

TEST_F(Safetensors, RefusesAnOverflowingShape) {
  for (const char* shape : {
           "[4294967296,4294967296]",    // 2^64 elements: 0 when wrapped
           "[2305843009213693952]",      // 2^61 elements of 8 bytes: 0 when wrapped
           "[9223372036854775807,2]",    // over 2^63
           "[1152921504606846976]",      // 2^63 bytes: over an int64
           "[0,9223372036854775807,3]",  // no element, but its strides overflow
           "[9223372036854775807,3,0]",  //
           "[4611686018427387904,4,1]",  //
       }) {
    const std::string entry = std::string(R"({"x":{"dtype":"F64","shape":)") + shape;
    expect_header_refused(entry + R"(,"data_offsets":[0,0]}})", "", "\"x\"", shape, "overflows");
    expect_header_refused(entry + R"(,"data_offsets":[0,8]}})", "12345678", shape, "overflows");
  }
  for (const char* dim : {"9223372036854775808", "18446744073709551615", "18446744073709551616"}) {
    expect_header_refused(
        std::string(R"({"x":{"dtype":"U8","shape":[)") + dim + R"(],"data_offsets":[0,0]}})",
        "",
        "\"x\"",
        "2^63 - 1");
  }
  std::string ones = "1";
  for (int i = 0; i < 64; ++i) {
    ones += ",1";
  }
  expect_header_refused(
      R"({"x":{"dtype":"U8","shape":[)" + ones + R"(],"data_offsets":[0,1]}})", "1", "65 dims");
}

TEST_F(Safetensors, RefusesTensorsThatDoNotFillTheData) {
  const auto two = [](int begin, int end, int size) {
    return std::string("{") + kX + R"(,"y":{"dtype":"U8","shape":[)" + std::to_string(size) +
           R"(],"data_offsets":[)" + std::to_string(begin) + "," + std::to_string(end) + "]}}";
  };
  expect_header_refused(two(3, 7, 4), "1234567", "\"y\"", "\"x\"", "overlaps", "3", "4");
  expect_header_refused(two(0, 4, 4), "1234", "overlaps");
  expect_header_refused(two(2, 2, 0), "1234", "overlaps");  // a tensor of nothing in another
  expect_header_refused(two(5, 8, 3), "12345678", "\"y\"", "\"x\"", "hole", "5", "4");
  expect_header_refused(two(4, 8, 4), "1234567", "\"y\"", "8", "7", "cut short");
  expect_header_refused(two(4, 8, 4), "", "cut short");
  expect_header_refused(two(4, 8, 4), "123456789", "9", "\"y\"", "8", "hole");
  expect_header_refused("{}", "1", "hole");
  expect_header_refused(
      R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
      "12",
      "hole",
      "start of the data");
  expect_header_refused(
      R"({"x":{"dtype":"U8","shape":[0],"data_offsets":[18446744073709551615,18446744073709551615]}})",
      "",
      "18446744073709551615",
      "cut short");
  expect_header_refused(
      R"({"x":{"dtype":"U8","shape":[0],"data_offsets":[0,18446744073709551616]}})", "", "\"x\"");
}

TEST_F(Safetensors, RefusesWrongMetadata) {
  expect_header_refused(R"({"__metadata__":5})", "", "__metadata__", "object of strings");
  expect_header_refused(R"({"__metadata__":{"a":5}})", "", "__metadata__", "object of strings");
}

TEST_F(Safetensors, MessagesStayShortAndPlain) {
  const std::string huge(1'000'000, 'x');
  expect_header_refused("{\"" + huge + "\":5}", "", "dtype, shape and data_offsets");
  expect_header_refused("{\"" + huge, "", "not JSON");
  try {
    const std::string header = R"({"\u001b[31m":5})";
    write_file("a.safetensors", length_of(header.size()) + header);
    const SafetensorsReader reader(path());
    ADD_FAILURE();
  } catch (const std::runtime_error& refusal) {
    EXPECT_EQ(std::string(refusal.what()).find('\x1b'), std::string::npos) << "a terminal escape";
  }
}

// Whatever byte of a file is changed, and wherever it is cut: refused, or read within its memory.
TEST_F(Safetensors, SurvivesDamage) {
  write_all(path(), {{"a", any_bits(at::kFloat, {2, 3})}, {"b", any_bits(at::kByte, {5})}});
  const std::string whole = content("a.safetensors");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write_file("a.safetensors", whole.substr(0, size));
    expect_refused("a.safetensors");
  }
  std::uint64_t header = 0;
  std::memcpy(&header, whole.data(), 8);
  for (std::size_t at = 0; at < 8 + header; ++at) {
    for (const char byte : {'\0', '0', '9', '-', '"', '{', '[', '\xff'}) {
      std::string damaged = whole;
      damaged[at] = byte;
      write_file("a.safetensors", damaged);
      try {
        const SafetensorsReader reader(path());
        for (const auto& [name, unused] : reader.tensors()) {
          EXPECT_LT(bytes_of(reader.view(name)).size(), whole.size());
        }
      } catch (const std::runtime_error&) {
        continue;
      }
    }
  }
}

TEST_F(Safetensors, ReadsAFolder) {
  write_all(path("model.safetensors"), {{"w", at::ones({2})}});
  EXPECT_TRUE(SafetensorsReader(path("")).contains("w"));
}

TEST_F(Safetensors, ReadsShardsAsOne) {
  fs::create_directory(path("sub"));
  write_all(path("m-1.safetensors"), {{"a", at::full({2}, 1.0)}, {"stray", at::zeros({1})}});
  write_all(path("sub/m-2.safetensors"), {{"b", at::full({3}, 2.0)}, {"c", at::full({}, 3.0)}});
  write_file(
      "model.safetensors.index.json",
      R"({"metadata":{"total_size":24},"weight_map":
          {"a":"m-1.safetensors","b":"sub/m-2.safetensors","c":"sub/m-2.safetensors"}})");
  const SafetensorsReader reader(path(""));
  EXPECT_EQ(reader.tensors().size(), 4);
  EXPECT_TRUE(at::equal(reader.view("a"), at::full({2}, 1.0)));
  EXPECT_TRUE(at::equal(reader.view("b"), at::full({3}, 2.0)));
  EXPECT_TRUE(at::equal(reader.view("c"), at::full({}, 3.0)));
  EXPECT_EQ(reader.metadata().at("format"), "pt");
  EXPECT_TRUE(reader.contains("stray"));
  EXPECT_EQ(reader.not_in_index(), std::vector<std::string>{"stray"});
  EXPECT_EQ(reader.file_of("stray"), path("m-1.safetensors"));
}

TEST_F(Safetensors, RefusesShardsThatDiffer) {
  write_file(
      "model.safetensors.index.json",
      R"({"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})");
  write_all(path("m-1.safetensors"), {{"a", at::full({2}, 1.0)}});
  write_all(path("m-2.safetensors"), {{"a", at::full({2}, 1.0)}, {"b", at::full({3}, 2.0)}});
  EXPECT_EQ(SafetensorsReader(path("")).tensors().size(), 2);  // the same twice
  for (const at::Tensor& other :
       {at::full({2}, 3.0), at::full({1, 2}, 1.0), at::full({2}, 1.0, at::kDouble)}) {
    write_all(path("m-2.safetensors"), {{"a", other}, {"b", at::full({3}, 2.0)}});
    expect_refused("", "m-2.safetensors", "tensor \"a\"", "m-1.safetensors has too");
  }
}

TEST_F(Safetensors, RefusesAWrongIndex) {
  const auto refused = [&](const std::string& index, const auto&... parts) {
    SCOPED_TRACE(index);
    write_file("model.safetensors.index.json", index);
    expect_refused("", parts...);
  };
  write_all(path("m.safetensors"), {{"a", at::ones({2})}});
  refused("", "not JSON");
  refused("[]", "not a JSON object");
  refused("{}", "weight_map");
  refused(R"({"weight_map":["m.safetensors"]})", "weight_map");
  refused(R"({"weight_map":{"a":5}})", "\"a\"", "is in 5");
  refused(R"({"weight_map":{"a":"m.safetensors","a":"n.safetensors"}})", "\"a\" twice");
  refused(R"({"weight_map":{"a":"none.safetensors"}})", "none.safetensors", "cannot be read");
  refused(
      R"({"weight_map":{"a":"m.safetensors","b":"m.safetensors"}})",
      "promises tensor \"b\"",
      "m.safetensors");
  const std::string outside = path("m.safetensors").string();  // there, but named from the root
  for (const std::string& shard :
       {std::string("../m.safetensors"),
        std::string("x/../../m.safetensors"),
        outside,
        std::string(".."),
        std::string(""),
        std::string("sub/"),
        std::string("m.safetensors\\u0000"),
        std::string("/etc/passwd")}) {
    refused(R"({"weight_map":{"a":")" + shard + R"("}})", "folder of the index", "\"a\"");
  }
  refused(R"({"weight_map":{"a":"."}})", "it is a folder");
  refused(std::string(1'000'000, '['), "nests deeper");
  // a shard is distrusted like any file
  write_file("m.safetensors", length_of(1000) + "{}");
  refused(R"({"weight_map":{"a":"m.safetensors"}})", "m.safetensors", "cut short");
}

TEST_F(Safetensors, AnUnfinishedFileLeavesNothing) {
  {
    SafetensorsWriter writer(path(), {{"w", declared(at::kFloat, {2})}});
    EXPECT_THAT(  // nothing, where the file system has files without names
        listing(),
        testing::Each(testing::MatchesRegex("a.safetensors.[0-9]+.partial")));
    writer.write("w", at::ones({2}));
  }
  EXPECT_TRUE(listing().empty());
}

TEST_F(Safetensors, TheOldFileStaysUntilTheNewOneIsWhole) {
  write_all(path(), {{"w", at::zeros({2})}});
  {
    SafetensorsWriter writer(path(), {{"w", declared(at::kFloat, {2})}});
    writer.write("w", at::ones({2}));
  }
  EXPECT_TRUE(at::equal(SafetensorsReader(path()).view("w"), at::zeros({2})));
  const SafetensorsReader before(path());
  write_all(path(), {{"w", at::ones({2})}});
  EXPECT_TRUE(at::equal(SafetensorsReader(path()).view("w"), at::ones({2})));
  EXPECT_TRUE(at::equal(before.view("w"), at::zeros({2})));  // its mapping outlives the name
}

template <class Action, class... Parts>
void expect_invalid(const Action& action, const Parts&... parts) {
  EXPECT_THAT(
      action,
      testing::ThrowsMessage<std::invalid_argument>(
          AllOf(HasSubstr("a.safetensors"), HasSubstr(parts)...)));
}

TEST_F(Safetensors, TheWriterRefusesAWrongDeclaration) {
  const auto declare = [&](const Declared& tensors) {
    return [this, tensors] { const SafetensorsWriter writer(path(), tensors); };
  };
  const StoredTensor two = declared(at::kFloat, {2});
  expect_invalid(declare({{"w", two}, {"w", two}}), "\"w\"", "twice");
  expect_invalid(declare({{"__metadata__", two}}), "reserved");
  expect_invalid(declare({{"w", declared(at::kFloat, {-2})}}), "[-2]", "negative");
  expect_invalid(declare({{"w", declared(at::kFloat, {1L << 40, 1L << 40})}}), "overflows");
  expect_invalid(declare({{"w", declared(at::kComplexDouble, {2})}}), "ComplexDouble");
  expect_invalid(declare({{"\xff", two}}), "UTF-8");
  EXPECT_TRUE(listing().empty());
}

TEST_F(Safetensors, TheWriterRefusesAWrongOrderOrShape) {
  SafetensorsWriter writer(
      path(), {{"v", declared(at::kFloat, {2})}, {"w", declared(at::kDouble, {2, 3})}});
  expect_invalid(
      [&] { writer.write("w", at::ones({2, 3}, at::kDouble)); }, "\"w\"", "next", "\"v\"");
  expect_invalid([&] { writer.write("v", at::ones({3})); }, "Float[3]", "Float[2]");
  expect_invalid([&] { writer.write("v", at::ones({2}, at::kDouble)); }, "Double[2]", "Float[2]");
  expect_invalid([&] { writer.write("v", at::Tensor()); }, "dense");
  expect_invalid([&] { writer.finish(); }, "\"v\"", "1 more");
  writer.write("v", at::ones({2}));
  expect_invalid([&] { writer.write("v", at::ones({2})); }, "\"v\"", "next", "\"w\"");
  writer.write("w", at::ones({2, 3}, at::kDouble));
  expect_invalid([&] { writer.write("x", at::ones({2})); }, "after all declared");
  writer.finish();
  expect_invalid([&] { writer.finish(); }, "finished before");
  expect_invalid([&] { writer.write("v", at::ones({2})); }, "after the file was finished");
  EXPECT_EQ(SafetensorsReader(path()).tensors().size(), 2);  // the refused ones left no trace
}

TEST_F(Safetensors, TheWriterSaysWhenTheDiskSaysNo) {
  EXPECT_THAT(
      [&] { const SafetensorsWriter writer(path("none/a.safetensors"), {}); },
      testing::ThrowsMessage<std::runtime_error>(
          AllOf(HasSubstr("none/a.safetensors"), HasSubstr("No such file"))));

  // A limit on the size of files stands for a full disk.
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{4096, before.rlim_max};
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  {
    SafetensorsWriter writer(path(), {{"w", declared(at::kFloat, {4096})}});
    EXPECT_THROW(writer.write("w", at::ones({4096})), std::runtime_error);
    expect_invalid([&] { writer.write("w", at::ones({4096})); }, "failed write");
    expect_invalid([&] { writer.finish(); }, "failed write");
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  (void)std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(listing().empty());

  fs::create_directories(path("b.safetensors/full"));  // a folder cannot be replaced by a file
  EXPECT_THROW(write_all(path("b.safetensors"), {{"w", at::ones({2})}}), std::runtime_error);
  EXPECT_EQ(listing(), std::vector<std::string>{"b.safetensors"});
}

}  // namespace
}  // namespace paradyse
