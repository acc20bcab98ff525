"""The rules that turnlog ships, in English and Chinese (M2, E 8.7): what they read, and what they must not."""

from datetime import timedelta

import pytest
from helpers.dated_claims import decided
from helpers.extraction import FIRST_TURN_AT, apply_rules, contents, extractor_turn, found, rejection_reasons

from turnlog.agent.memory.extraction.by_rules import Extractor
from turnlog.agent.memory.extraction.candidates import candidates
from turnlog.agent.memory.extraction.rules import load_rules

READ = [
    ("My name is Emily. Nice to meet you.", "Name is Emily"),
    ("你好，我叫张曼婷，很高兴认识你。", "名字是张曼婷"),
    ("Hi, I'm Lin Wei (林薇), a senior.", "Name is Lin Wei"),
    ("你好，我是姚国栋。", "名字是姚国栋"),
    ("Hmm, I think you can call me Lulu.", "Wants to be called Lulu"),
    ("嗯，我觉得你可以叫我小琳吧。", "希望被称呼为小琳"),
    ("I'm 17 years old.", "Is 17 years old"),
    ("我今年十七岁。", "17岁"),
    ("My birthday is May 3rd.", "Birthday is 05-03"),
    ("我的生日是1998年5月3日。", "生日是1998-05-03"),
    ("Today is my birthday!", "Birthday is 05-08"),
    ("I'm originally from New Zealand.", "Comes from New Zealand"),
    ("我来自成都。", "来自成都"),
    ("I recently moved to San Francisco.", "Lives in San Francisco"),
    ("我现在住在上海。", "住在上海"),
    ("I live in District 9 now.", "Lives in District 9"),
    ("I moved to Berlin 3 years ago.", "Lives in Berlin"),
    ("I work as a software engineer at Initech.", "Works as software engineer"),
    ("我是一名护士。", "职业是护士"),
    ("I work for Initech.", "Works at Initech"),
    ("我在人民医院上班。", "在人民医院工作"),
    ("I study at Stanford University.", "Studies or studied at Stanford University"),
    ("我就读于杭州第二中学。", "就读或毕业于杭州第二中学"),
    ("My sister's name is Mia.", "sister is called Mia"),
    ("我女儿叫小雨。", "女儿叫小雨"),
    ("I have two younger brothers.", "Has two younger brothers"),
    ("我有一个弟弟。", "一个弟弟"),
    ("I'm married.", "Is married"),
    ("We have a dog named Rex.", "Pet: a dog named Rex"),
    ("我养了一只猫，叫咪咪。", "宠物：一只猫，叫咪咪"),
    ("I'm allergic to peanuts, so no satay.", "Allergic to peanuts"),
    ("我对花生严重过敏，随身带药。", "对花生过敏"),
    ("I'm a vegetarian.", "Diet: vegetarian"),
    ("我不吃辣。", "饮食：不吃辣"),
    ("I was diagnosed with asthma.", "Has asthma"),
    ("我有哮喘。", "患有哮喘"),
    ("I speak English and French.", "Speaks English and French"),
    ("我会说粤语。", "会说粤语"),
    ("My native language is Polish.", "Native language is Polish"),
    ("我的母语是温州话。", "母语是温州话"),
    ("You can email me at Bob.Lee+x@Example.org.", "Email: bob.lee+x@example.org"),
    ("我的邮箱是 bob@example.org。", "邮箱：bob@example.org"),
    ("我的手机号是 138 0013 8000", "电话：+8613800138000"),
    ("My phone number is +1 650-253-0000.", "Phone: +16502530000"),
    ("Hi, I'm Rachel and I work as a nurse.", "Name is Rachel"),
    ("I'd rather you kept answers short, please.", "Wants answers short"),
    ("My phone number is 07700 900123, call after six.", "Phone: 07700 900123"),
    ("My phone number is 650-253-0000.", "Phone: 650-253-0000"),
    ("我的电话是 0571-88888888", "电话：0571-88888888"),
    ("I really enjoy painting, playing piano and tea tasting.", "Likes painting, playing piano and tea tasting"),
    ("我很喜欢绘画、弹钢琴和品茶，你觉得呢？", "喜欢绘画、弹钢琴和品茶"),
    ("I can't stand cilantro.", "Dislikes cilantro"),
    ("我讨厌下雨天。", "不喜欢下雨天"),
    ("I no longer like coffee.", "No longer likes coffee"),
    ("My favorite color is blue.", "Favourite color: blue"),
    ("我最喜欢的颜色是蓝色。", "最喜欢的颜色是蓝色"),
    ("My hobbies are chess and rowing.", "Hobbies: chess and rowing"),
    ("我的爱好是下棋。", "爱好：下棋"),
    ("I play the violin.", "Plays violin"),
    ("我拉二胡九年了。", "会拉二胡"),
    ("I've been learning to draw recently.", "Is learning to draw"),
    ("我最近在学习编程。", "在学编程"),
    ("My goal is to run a marathon.", "Goal: run a marathon"),
    ("我的目标是考上北大。", "目标：考上北大"),
    ("I'm planning a trip to New Zealand.", "Plan: a trip to New Zealand"),
    ("I want to go to Spain next month.", "Plan: go to Spain next month (2023-06)"),
    ("我下个月想去西班牙旅行。", "计划下个月（2023-06）去西班牙旅行"),
    ("I've decided to quit my job.", "Decided: quit my job"),
    ("我决定辞职。", "决定辞职"),
    ("Please answer in Chinese.", "Wants answers in Chinese"),
    ("请用中文回答。", "希望用中文回答"),
    ("Keep your answers short.", "Wants answers short"),
    ("回答请简短一点。", "希望回答简短"),
    ("Please don't use emojis.", "Wishes: don't use emojis"),
    ("Your answer was too long.", "Found an answer too long"),
    ("你的回答太啰嗦了。", "对回答的评价：太啰嗦了"),
    ("My GPA is 3.8.", "GPA is 3.80"),
    ("我的GPA是3.8", "GPA是3.80"),
    ("绩点是3.75", "GPA是3.75"),
    ("I got 1530 on the SAT.", "SAT 1530"),
    ("SAT 3 月 1480。", "SAT 1480"),
    ("My ACT score is 33.", "ACT 33"),
    ("托福 6 月考了 104，口语只有 22。", "托福104"),
    ("My IELTS score is 7.5.", "IELTS 7.5"),
    ("年级排名大概前 12%。", "排名：前12%"),
    ("I'm in the top 5% of my class.", "Class rank: top 5%"),
    ("I want to apply to Stanford.", "Wants to apply to Stanford"),
    ("我想申请复旦大学。", "想申请复旦大学"),
    ("I've decided to apply ED to Cornell.", "Applies ED to Cornell"),
    ("我决定 11 月 1 日 EA Lakeshore。", "EA 申请 Lakeshore"),
    ("我不 ED Northgate 了。", "决定不 ED Northgate"),
    ("I'm majoring in biology.", "Major: biology"),
    ("我想学计算语言学。", "专业：计算语言学"),
    ("I'm the president of the debate club.", "Is president of the debate club"),
    ("我是学生会主席。", "担任学生会主席"),
    ("My budget is $45,000 a year.", "Budget: $45,000 a year"),
    ("护照 2027 年 3 月 18 日到期。", "护照2027-03-18到期"),
    ("My passport expires on 18 March 2027.", "Passport expires on 2027-03-18"),
    ("我的生日是三月三号。", "生日是03-03"),
    ("我出生于1992年十月十号。", "生日是1992-10-10"),
    ("我十二月二十五日过生日。", "生日是12-25"),
    ("我今年二十八，在北京工作。", "28岁"),
    ("I turned 40 yesterday.", "Is 40 years old"),
    ("I just moved from Paris to Berlin.", "Lives in Berlin"),
    ("我刚从巴黎搬到柏林。", "住在柏林"),
    ("我是广东人，在深圳上班。", "来自广东"),
    ("Now I'm at a startup called Nimbus.", "Works at Nimbus"),
    ("I started a new job at Nimbus last week.", "Works at Nimbus"),
    ("I left Google and joined a small company called Acme.", "Works at Acme"),
    ("I'm a software engineer at Siemens in Munich.", "Works at Siemens"),
    ("我现在在一家叫云帆的创业公司上班。", "在云帆工作"),
    ("我换工作了，现在在腾讯做产品经理。", "在腾讯工作"),
    ("I'm retired.", "Is retired"),
    ("我酒精过敏。", "对酒精过敏"),
    ("I don't eat meat any more.", "Diet: don't eat meat"),
    ("我已经不吃肉了。", "饮食：不吃肉"),
    ("I only drink decaf.", "Diet: only drink decaf"),
    ("I speak Spanish and a bit of Portuguese.", "Speaks Spanish and a bit of Portuguese"),
    ("I'm trying to learn Italian.", "Is learning Italian"),
    ("我从去年开始学法语。", "在学法语"),
    ("I prefer tea over coffee.", "Prefers tea over coffee"),
    ("I prefer Python to Java.", "Prefers Python to Java"),
    ("我比起咖啡更喜欢喝茶。", "比起咖啡更喜欢喝茶"),
    ("我喜欢茶胜过咖啡。", "比起咖啡更喜欢茶"),
    ("Answer briefly, please.", "Wants answers briefly"),
    ("请简单回答。", "希望回答简单"),
    ("别用表情符号。", "要求：别用表情符号"),
    ("I'm quite introverted and I avoid parties.", "Is introverted"),
    ("I'm Ann, 34, and I run a small bakery in Portland.", "Is 34 years old"),
    ("I'm Ann, 34, and I run a small bakery in Portland.", "Runs a small bakery in Portland"),
    ("im a nurse and i dont eat meat.", "Works as nurse"),
    ("im a nurse and i dont eat meat.", "Diet: dont eat meat"),
    ("I'm 52 and overweight.", "Is 52 years old"),
    ("We live in a small town near Lyon, so there is no bus.", "Lives in a small town near Lyon"),
    ("I live just outside Boston.", "Lives outside Boston"),
    ("I moved to Asheville last year.", "Lives in Asheville"),
    ("I relocated to Austin, Texas.", "Lives in Austin, Texas"),
    ("I quit Amazon last month to work on my own.", "Has left Amazon"),
    ("I no longer work at IBM; I joined Lumen.", "Has left IBM"),
    ("我上个月从腾讯离职了。", "已从腾讯离职"),
    ("农历八月十五是我的生日。", "生日是农历八月十五"),
    ("我的生日是农历正月初三。", "生日是农历正月初三"),
    ("My birthday is August 15 on the lunar calendar.", "Birthday in the lunar calendar is August 15"),
    ("My dad passed away in 2019.", "dad passed away in 2019"),
    ("我奶奶2019年去世了。", "奶奶2019年去世了"),
    ("I take metformin for type 2 diabetes.", "Takes metformin for type 2 diabetes"),
    ("我身高175，体重80公斤。", "身高175"),
    ("I'm 5'11\" and weigh 180 lbs.", "Weighs 180 lbs"),
    ("我今年高二。", "上高二"),
    ("I'm working on my PhD in biology at UBC.", "Studies for: PhD in biology"),
    ("I don't have any siblings.", "Has no siblings"),
    ("I gave up coffee in March.", "Gave up coffee"),
    ("我已经戒烟半年了。", "戒烟"),
    ("No bullet points, please.", "Wishes: No bullet points"),
    ("Please always reply in British English.", "Wants answers in British English"),
    ("我是左撇子。", "是左撇子"),
    ("I live in Paris, France, I love it.", "Lives in Paris, France"),
    ("I work at Google and I live in Rome.", "Works at Google"),
    ("I translate novels for a living.\nI live in Rome.", "Lives in Rome"),
    ("我是一名翻译。\n我住在上海。", "住在上海"),
    ("I'm from Georgia, I love peaches.", "Comes from Georgia"),
    ("I don't work at Google anymore.", "Has left Google"),
    ("My roommate Sam snores.", "roommate is called Sam"),
    ("我大学学的是计算机。", "专业：计算机"),
    ("我一个月工资一万二。", "工资一万二"),
    ("I have arthritis in my hands.", "Has arthritis"),
    ("请用英文回答。", "希望用英文回答"),
]


@pytest.mark.parametrize(("text", "content"), READ, ids=[text for text, _ in READ])
def test_a_statement_becomes_a_memory(text: str, content: str) -> None:
    assert content in contents(text)


NOT_READ = [
    "What is my name?",
    "Do you know that I like photography?",
    "你知道我喜欢拍照吗？",
    "Is my GPA of 3.8 enough?",
    "我的GPA是3.8够吗？",
    "If I lived in Paris, I would walk more.",
    "如果我住在上海，我会很开心。",
    "He said I live in a dream.",
    "他说我喜欢抱怨。",
    'She wrote: "My name is Bob and I live in Rome."',
    "他说：“我叫王伟，我住在北京。”",
    "> My name is Quoted.",
    "```\nI live in Code\n```",
    "assistant: I live in the cloud.",
    "[LONG-TERM MEMORIES]\n- I live in Berlin\n- I like tea",
    "My friend likes tea and lives in Rome.",
    "我朋友喜欢喝茶。",
    "It's my friend's birthday today.",
    "I like it.",
    "我很喜欢这种气质。",
    "I love that you ask!",
    "I'd like to ask you something.",
    "I like talking to you.",
    "我喜欢和你聊天。",
    "I'm back to chat with you again!",
    "I'm Chinese.",
    "我是高中生。",
    "I live in fear.",
    "I'm from time to time tired.",
    "My GPA is 88.6.",
    "My name is not important.",
    "我目前在一家公司工作。",
    "Today I plan to go out to dinner.",
    "今天我打算去散步。",
    "I have been learning a new skill.",
    "Thanks, those suggestions are very useful.",
    "非常感谢你的建议，我会尝试一下。",
    "I've been feeling a bit down and anxious.",
    "Don't give up!",
    "My phone number is 12.",
    "Hi, I'm Korean and I have a question.",
    "I prefer not to say.",
    "I turned 180 degrees.",
    "我今年十月去北京。",
    "我在家上班。",
    "别用力过猛。",
    "I moved to Plan B.",
    "We moved to the next step.",
    "I've moved to Python 3.12.",
    "I just moved to a new phone.",
    "We moved to Stripe for payments.",
    "I relocated to Google Cloud.",
    "我搬到新办公室了。",
    "我搬到第二页还是看不到。",
    "I quit Photoshop and now it won't open.",
    "I quit Diablo last month.",
    "I quit Figma because it would not work.",
    "I own a shop in Skyrim.",
    "In my novel, my dad died in 1990.",
    "My dog died in the game.",
    "I drive a Tesla in this game.",
    "Translate into French: My name is Paul and I live in Leeds.",
    "Write a story: I'm a doctor and I live in Rome.",
    "请把这句翻译成英文：我住在北京，喜欢吃烤鸭。",
    "写一段对话：A：我叫小红，今年五岁。",
    "我是单亲妈妈的孩子。",
    "今天是农历八月十五。",
    "I'm 52 and counting down.",
    "I have no kids menu here.",
    "I take pride daily.",
    "I'm on lithium ion batteries.",
    "My wedding is on hold.",
    "We're starting in March.",
    "我家在北京买了房。",
    "我入职三年了。",
    "I'm Level 34.",
    "I'm Gate 14, where are you?",
    "I'm 80 M away.",
    "I live in VS Code.",
    "I moved to Ubuntu with my old laptop.",
    "I moved to Notion for work.",
    "I moved to Victoria's room.",
    "I moved to Phoenix LiveView.",
    "I'm a two hour drive from Denver.",
    "I'm a guy calling from Portugal.",
    "I'm married to my work.",
    "My doctor prescribed melatonin for my dog.",
    "I got asthma leaflets for my patients.",
    "I have depression in my novel.",
    "I don't work at Google, I only use it.",
    "I was fired by Claude.",
    "I quit Facebook because it made it hard to work.",
    "I stopped working at Noon.",
    "I joined Zoom late.",
    "I joined Spanish class.",
    "I make $20 per unit.",
    "I weigh 50 kg bags all day.",
    "I'M A POSITIVE PERSON.",
    "My manager Excel sheet is broken.",
    "My mom Loves cats.",
    "I was born in May.",
    "I don't drink coffee after 5.",
    "I'm pregnant with ideas.",
    "Our partner is based in Berlin.",
    "My therapist Dr. Lee says I should rest.",
    "My son Apple watch broke.",
    "We have a dog policy.",
    "I never drink alone.",
    "My name is unimportant.",
    "Write in Spanish a poem about rain.",
    "Reply in French: thanks for the email.",
    "For example, I live in Berlin.",
    "Translate into French. I live in Leeds and my name is Paul.",
    "Translate this to Chinese\n\nMy name is Paul and I work at Google.",
    "Pretend I'm a teacher. I teach math.",
    "Lyrics: I'm from Georgia, I got a dog named Blue.",
    "我姓啥，你猜。",
    "我快三十了。",
    "我家在二楼西区。",
    "我住在你附近。",
    "我从来没离职。",
    "我入职前要体检。",
    "我转行做饭了。",
    "我学的是皮毛。",
    "我读的是英文版。",
    "我吃不惯药片。",
    "我有高血压的爸爸。",
    "我的对象叫User。",
    "我工资20号发。",
    "请用英文写一封邮件。",
    "用日语回复这封邮件。",
    "请翻译下面这句话\n我住在北京，今年三十岁。",
    "比如我住在北京，月薪两万。",
    "请把下面的话翻译成英文。我住在北京。",
    "我们来玩角色扮演，我是一名医生。",
    "我叫车回家。",
    "我只喝一杯。",
    "我爱吃不吃。",
]


@pytest.mark.parametrize("text", NOT_READ)
def test_what_states_nothing_lasting_about_the_user_is_left_out(text: str) -> None:
    assert contents(text) == []


def test_a_later_answer_to_the_same_question_has_the_same_key() -> None:
    """The seed's `gpa:${value}` would let two GPAs stand side by side under KEEP_LATEST."""
    first, second = found("My GPA is 3.6", "我的GPA是3.8")
    assert (first.dedupe_key, second.dedupe_key, second.strategy) == ("gpa", "gpa", "KEEP_LATEST")


def test_liking_and_no_longer_liking_contradict_each_other_and_other_tastes_do_not() -> None:
    keys = [one.dedupe_key for one in found("I like coffee.", "I no longer like Coffee.", "I don't like tea.")]
    assert keys == ["taste:coffee", "taste:coffee", "taste:tea"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("I like coffee.", "I don't like coffee any more."),
        ("I hate coffee.", "I like coffee."),
        ("我喜欢喝茶。", "我不喜欢喝茶了。"),
    ],
)
def test_the_opposite_of_a_taste_ends_it_and_does_not_confirm_it(first: str, second: str) -> None:
    findings = found(first, second)
    held = decided(candidates("default", "ann", findings))
    assert held.valid == [findings[1].content]


def test_whoever_has_left_an_employer_works_there_no_more_and_a_new_one_holds() -> None:
    held = decided(candidates("default", "ann", found("I work at Amazon.", "I resigned from Amazon last week.")))
    assert held.valid == ["Has left Amazon"]
    held = decided(candidates("default", "ann", found("I quit Amazon last week and I joined Lumen.")))
    assert held.valid == ["Works at Lumen"]


def test_the_best_result_of_a_test_holds() -> None:
    assert {one.strategy for one in found("SAT 1480", "TOEFL 104", "ACT成绩33", "雅思7.5")} == {"KEEP_HIGHEST"}


def test_the_rules_cover_the_seed_and_many_more_in_both_languages() -> None:
    rules = load_rules().rules
    assert len(rules) >= 45
    assert {"gpa", "sat", "act", "toefl", "ielts", "class-rank", "target-school", "early-decision", "major"} <= {
        one.id for one in rules
    }
    assert all(one.rule.en and one.rule.zh for one in rules)
    assert {one.rule.type for one in rules} == {"FACT", "PREFERENCE", "DECISION", "FEEDBACK"}


def test_a_memory_lives_as_long_as_its_rule_says_from_when_it_was_said() -> None:
    [gpa] = found("My GPA is 3.8")
    assert gpa.expires_at == gpa.source.said_at + timedelta(days=365)
    assert abs(gpa.source.said_at - FIRST_TURN_AT) < timedelta(hours=1)


def test_the_quote_is_the_sentence_as_it_stands_in_the_turn() -> None:
    text = "Well…  I'm back!  我叫张伟，很高兴认识你。 I live in\tBerlin, and you?"
    looked = apply_rules(text)
    assert [one.source.quote for one in looked.findings] == ["我叫张伟，很高兴认识你。", "I live in\tBerlin, and you?"]
    assert all(one.source.quote in text for one in looked.findings)


@pytest.mark.parametrize("text", ["My GPA is 3.80.", "I live in Berlin now!", "我对花生过敏。", "我现在住在北京。"])
def test_a_text_that_is_one_claim_is_a_finding_as_a_whole(text: str) -> None:
    one = extractor_turn(text)
    extractor = Extractor(load_rules())
    assert [extractor.only_finding(one)] == list(extractor.extract([one]).findings)


@pytest.mark.parametrize(
    "text",
    [
        "My GPA is 3.5 and my locker code is 8812",
        "I am allergic to nuts, my EpiPen is in the red bag",
        "I live in Berlin. The key is under the mat.",
        "我的GPA是3.5，住在杭州",
        "The spare key is under the blue pot",
        "Is my GPA 3.8?",
    ],
)
def test_a_text_that_says_more_than_a_rule_reads_is_none(text: str) -> None:
    assert Extractor(load_rules()).only_finding(extractor_turn(text)) is None


def test_a_rejection_says_why() -> None:
    assert rejection_reasons("Is my GPA 3.8?") == {"question"}
    assert rejection_reasons("If I wanted, my GPA is 3.8") == {"hypothetical"}
    assert rejection_reasons("Tom said my GPA is 3.8") == {"reported"}
    assert rejection_reasons("My GPA is 9.8") == {"invalid-value"}
    assert rejection_reasons("The place where I live in Berlin is small") == {"inside-a-clause"}
    assert rejection_reasons('The song "I live in Berlin" is old') == {"quoted"}
    assert rejection_reasons("Today I plan to move house") == {"excluded"}


def test_entities_come_with_the_memories_that_name_them() -> None:
    [sister, school] = found("My sister's name is Mia.", "I want to apply to Stanford.")
    assert [(one.type, one.name, one.attributes) for one in (*sister.entities, *school.entities)] == [
        ("PERSON", "Mia", {"relation": "sister"}),
        ("SCHOOL", "Stanford", {}),
    ]


def test_a_very_long_turn_and_a_very_long_sentence_are_bounded() -> None:
    assert contents("a" * 1_000_000 + ". My name is Ann.") == []
    assert contents("My name is Ann. " + "word " * 100_000) == ["Name is Ann"]


@pytest.mark.parametrize(
    ("strategy", "first", "second", "outcome"),
    [
        ("KEEP_LATEST", "I live in Berlin.", "I live in Lisbon.", ["superseded", "valid"]),
        ("KEEP_LATEST", "I live in Paris.", "I just moved from Paris to Berlin.", ["superseded", "valid"]),
        ("KEEP_HIGHEST", "My SAT score is 1480.", "My SAT score is 1390.", ["valid", "rejected"]),
        ("KEEP_OLDEST", "I come from Leeds.", "I'm from Berlin.", ["valid", "rejected"]),
        ("MERGE", "My hobbies are chess and rowing.", "My hobby is pottery.", ["merged", "merged", "valid"]),
        ("KEEP_BOTH", "I speak French.", "我会说日语。", ["valid", "valid"]),
        ("ASK_USER", "My birthday is May 3rd.", "我的生日是5月4日。", ["valid", "pending"]),
    ],
)
def test_each_strategy_is_that_of_a_rule(strategy: str, first: str, second: str, outcome: list[str]) -> None:
    said = candidates("default", "ann", found(first, second))
    assert [one.strategy for one in said] == [strategy] * 2
    rows = sorted(decided(said).rows, key=lambda row: row.origin == "compaction")
    assert [row.closed_reason or row.status for row in rows] == outcome
