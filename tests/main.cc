// main of tests.  A program called `plan.golden` runs the tests of golden_test.cc, whatever other
// files are compiled into it (cmake/UnitedTests.cmake); one whose name has no dot runs all.
#include <cstdio>
#include <set>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

std::string last_part(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Tells of the filter that was asked for: tests are chosen by then.
class Asked : public testing::EmptyTestEventListener {
 public:
  explicit Asked(std::string filter) : filter_(std::move(filter)) {}
  void OnTestProgramStart(const testing::UnitTest& /*all*/) override {
    GTEST_FLAG_SET(filter, filter_);
  }

 private:
  std::string filter_;
};

// A filter that leaves out tests of other files than `file`.  Post: none is left out that `file`
// has.
bool leave_out_others(const std::string& file) {
  testing::UnitTest& all = *testing::UnitTest::GetInstance();
  std::set<std::string> mine;
  std::set<std::string> others;
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const testing::TestInfo& test = *suite.GetTestInfo(t);
      (last_part(test.file()) == file ? mine : others)
          .insert(std::string(suite.name()) + "." + test.name());
    }
  }
  if (mine.empty()) {
    std::fprintf(stderr, "no test is of %s\n", file.c_str());
    return false;
  }
  std::string filter = GTEST_FLAG_GET(filter);
  all.listeners().Append(new Asked(filter));
  for (const std::string& name : others) {
    if (mine.contains(name)) {
      std::fprintf(stderr, "%s is in %s and in another file\n", name.c_str(), file.c_str());
      return false;
    }
    filter += (filter.find('-') == std::string::npos ? '-' : ':') + name;
  }
  GTEST_FLAG_SET(filter, filter);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string program = last_part(argv[0]);
  testing::InitGoogleMock(&argc, argv);
  const std::size_t dot = program.find('.');
  if (dot != std::string::npos && !leave_out_others(program.substr(dot + 1) + "_test.cc")) {
    return 1;
  }
  return RUN_ALL_TESTS();
}
