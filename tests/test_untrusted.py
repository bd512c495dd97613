"""Text from outside: what a file, a terminal and a model are kept from, and how long that takes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growing import growth
from parallelsearch import grammar
from parallelsearch.untrusted import Disarmer, finite, printable, web_url, whole, whole_start, whole_value

# As the chat templates of the usual families spell them.
TEMPLATE_TOKENS = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|begin_of_text|>",
    "<|python_tag|>",
    "<|reserved_special_token_0|>",
    "<|eom_id|>",
    "<|fim_prefix|>",
    "<|object_ref_start|>",
    "<|vision_start|>",
    "<|channel|>",
    "<|message|>",
    "<|call|>",
    "<|return|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
    "<|observation|>",
    "<|tool_calls_section_begin|>",
    "<|im_middle|>",
    "<|turn>",
    "<turn|>",
    "<|START_OF_TURN_TOKEN|>",
    "<|CHATBOT_TOKEN|>",
    "<|start_of_role|>",
    "<|Human|>",
    "<｜begin▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜tool▁calls▁begin｜>",
    "<s>",
    "</s>",
    "<unk>",
    "<pad>",
    "<bos>",
    "<eos>",
    "<mask>",
    "<cls>",
    "<sep>",
    "<eod>",
    "<sop>",
    "<eop>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<unused0>",
    "<unused99>",
    "<unused6241>",
    "<start_of_image>",
    "<end_of_image>",
    "<image_soft_token>",
    "<start_of_audio>",
    "<audio_soft_token>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<tools>",
    "</tools>",
    "<answer>",
    "</answer>",
    "<search>",
    "<information>",
    "<repo_name>",
    "<reponame>",
    "<file_sep>",
    "<filename>",
    "<gh_stars>",
    "<issue_start>",
    "<issue_comment>",
    "<issue_closed>",
    "<jupyter_start>",
    "<jupyter_text>",
    "<jupyter_code>",
    "<jupyter_output>",
    "<jupyter_script>",
    "<empty_output>",
    "<commit_before>",
    "<commit_msg>",
    "<commit_after>",
    "<fim_prefix>",
    "<fim_middle>",
    "<fim_suffix>",
    "<fim_pad>",
    "<PAD>",
    "<UNK>",
    "<CLS>",
    "<SEP>",
    "<MASK_TOKEN>",
    "<BOS_TOKEN>",
    "<EOS_TOKEN>",
    "<EOP_TOKEN>",
    "<reserved_106>",
    "<extra_id_0>",
    "<SPECIAL_20>",
    "<seed:bos>",
    "<seed:think>",
    "</seed:think>",
    "<minimax:tool_call>",
    "<<SYS>>",
    "<</SYS>>",
    "[INST]",
    "[/INST]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[AVAILABLE_TOOLS]",
    "[TOOL_CALLS]",
    "[TOOL_RESULTS]",
    "[TOOL_CONTENT]",
    "[ARGS]",
    "[CALL_ID]",
    "[THINK]",
    "[/THINK]",
    "[IMG]",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[AUDIO]",
    "[BEGIN_AUDIO]",
    "[TRANSCRIBE]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[MODEL_SETTINGS]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "[PAD]",
    "[UNK]",
    "[gMASK]",
    "[sMASK]",
    "[BOS]",
    "[EOS]",
    "[unused1]",
    "[UNUSED_TOKEN_146]",
    "[control_8]",
    "]~b]",
    "]~!b[",
    "[e~[",
]
IGNORABLE = [
    "\u200b",
    "\u00ad",
    "\ufe0f",
    "\U000e0100",
    "\u034f",
    "\u2066",
    "\u180e",
    "\u115f",
    "\U000e0041",
    "\x9b",
    "\x00",
]


def is_armed(text: str) -> bool:
    return grammar._disarmer(frozenset()).pattern.search(text) is not None


@pytest.mark.parametrize("token", TEMPLATE_TOKENS)
def test_a_token_of_a_chat_template_is_harmless_however_it_is_dressed(token):
    full_width = "".join(chr(ord(char) + 0xFEE0) if "!" <= char <= "~" else char for char in token)
    dressed = [token, full_width, *(ignored.join(token) for ignored in IGNORABLE)]
    for form in dressed:
        text = grammar.defuse(f"before {form} after")
        assert token not in text
        assert not is_armed(text)
        assert text.startswith("before ")
        assert text.endswith(" after")


@pytest.mark.parametrize("letters", ["𝐬𝐞𝐚𝐫𝐜𝐡", "ⓢⓔⓐⓡⓒⓗ", "ｓｅａｒｃｈ", "𝓈𝑒𝒶𝓇𝒸𝒽", "SEARCH", "ſearch"])
def test_letters_in_another_dress_are_the_same_letters(letters):
    assert grammar.defuse(f"a <{letters}> b") in ("a ‹search› b", "a ‹SEARCH› b", "a ‹ſearch› b")


def test_a_ligature_hides_nothing():
    assert grammar.defuse("<ﬁle_sep> and ﬁne") == "‹file_sep› and ﬁne"


def test_the_special_tokens_of_the_tokenizer_are_taken_from_it():
    special = frozenset({"<unheard_of>", "[OWN]", "PLAIN", "<|im_end|>"})
    assert grammar.defuse("a <unheard_of> [OWN] PLAIN b") == "a <unheard_of> [OWN] PLAIN b"
    assert grammar.defuse("a <unheard_of> [OWN] PLAIN b", special) == "a ‹unheard_of› (OWN) PLAIN b"
    assert grammar.defuse("a <unhe\u00adard_of> b", special) == "a ‹unheard_of› b"


@pytest.mark.parametrize(
    "text",
    [
        "In C++, vector<int> a < b > c; ## heading [1] 日本 a&b",
        "<b>bold</b> and <i>i</i> if x <y> z, [12, 13] and [citation needed]",
        "soft\u00adhyphen, heart ❤️ and a kanji 葛\U000e0100 beside [1] and <p>",
        "x² ½ ™ … № ﬁne ① [2] １２３ Ａ",
        "मैं [हिन्दी] বাংলা العربية <ru> русский",
    ],
)
def test_ordinary_text_stays_as_it_is_byte_for_byte(text):
    assert grammar.defuse(text) == text


@pytest.mark.parametrize(
    "make",
    [
        lambda n: "<" + " " * n,
        lambda n: "< " * (n // 2),
        lambda n: "</" + "\u3000" * n,
        lambda n: "<" + "\u200b \u00ad" * (n // 3),
        lambda n: "<|" * (n // 2) + "|>" * (n // 2),
        lambda n: "<search" + " " * n,
        lambda n: "[" + " " * n + "/" + " " * n,
        lambda n: "<<" + "\t" * n + "SYS",
        lambda n: "＜" * n,
        lambda n: "＜ｓ" * (n // 2) + "ﷺ" * n,
        lambda n: "<" + "a\u0315\u0300\u05ae" * (n // 4) + "＜s＞",
        lambda n: "<|" + "a" * 63 + "<|" * n,
        lambda n: "\ud800" * n + "<",
        lambda n: "<s>" * n,
    ],
)
def test_cleaning_takes_time_in_proportion_to_the_text(make):
    def clean(size: int):
        text = make(size)
        return lambda: (grammar.defuse(text), printable(text))

    assert growth(clean(10_000), clean(100_000), limit=15, floor_s=0.002) < 15


def test_disarming_ends_however_deep_brackets_stand_in_brackets():
    nested = "<|" * 30 + "x" + "|>" * 30
    assert not is_armed(grammar.defuse(nested))


@given(st.text(st.characters(categories=("L", "S", "P", "C", "Z", "M")), max_size=80))
def test_cleaned_text_is_clean_and_stays_so(text):
    once = grammar.defuse(text)
    assert grammar.defuse(once) == once
    assert not is_armed(once)
    once.encode("utf-8")


@given(st.text("<>|/[] sear\u00adch\ufe0f＜＞ｓ\u200b\ud83d\ude00", max_size=40))
def test_cleaned_text_of_hostile_letters_is_clean_and_stays_so(text):
    once = grammar.defuse(text)
    assert grammar.defuse(once) == once
    assert not is_armed(once)
    assert not grammar._TAG.search(once)


def test_halves_of_a_pair_are_joined_or_replaced():
    assert whole("a\ud83d\ude00b") == "a😀b"
    assert whole("a\ud83db") == "a\ufffdb"
    assert whole("plain") == "plain"
    assert whole_start("a\ud83d") == ("a", "\ud83d")
    assert whole_start("") == ("", "")
    assert whole_value({"\ud800": ["\udc00", 1, None, ("x",)]}) == {"\ufffd": ["\ufffd", 1, None, ["x"]]}


@given(st.text(st.characters(categories=["Cs", "L", "Cc"]), max_size=30))
def test_whole_text_is_utf8(text):
    assert whole(text).encode("utf-8").decode("utf-8") == whole(text)


@pytest.mark.parametrize("char", ["\x1b", "\x9b", "\x07", "\x08", "\r", "\x7f", "\x85", "\u202e", "\u2066", "\u2069", "\u2028", "\ud800"])  # fmt: skip
def test_a_terminal_is_shown_what_it_would_obey(char):
    shown = printable(f"a{char}[31mb\n\tc")
    assert char not in shown
    assert shown == f"a\\u{ord(char):04x}[31mb\n\tc"
    record = {"text": f"a{char}b"}
    assert json.loads(printable(json.dumps(record, ensure_ascii=False))) == record


@pytest.mark.parametrize("value", [10**400, -(10**400), float("nan"), float("inf"), True, "1", None, [], {}])
def test_what_is_no_number_is_none(value):
    assert finite(value) is None


def test_a_number_is_a_float():
    assert finite(3) == 3.0
    assert finite(-0.5) == -0.5


def test_a_disarmer_knows_its_own_words():
    clean = Disarmer(["own"])
    assert clean("<own> <search>") == "‹own› <search>"


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        " JavaScript:alert(1)",
        "data:text/html,x",
        "file:///etc/passwd",
        "//x",
        "x",
        "",
        "http://[",
    ],
)
def test_only_addresses_of_the_web_are_handed_on(url):
    assert web_url(url) is None
    assert web_url("https://example.org/a?b#c") == "https://example.org/a?b#c"
