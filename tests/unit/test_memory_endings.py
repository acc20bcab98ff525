"""A later statement ends the older fact that it denies, and no other fact."""

import pytest
from helpers.extraction import apply_rules

from turnlog.agent.memory.deciding.conflicts import decide
from turnlog.agent.memory.deciding.memory_state import MemoryState
from turnlog.agent.memory.deciding.writing import Place
from turnlog.agent.memory.extraction.proposals import candidates
from turnlog.events.contracts.base import END_OF_TIME

ENDS = (
    ("I live in Turin.", "I moved to Genoa."),
    ("I live in Turin.", "I moved to Genoa last week."),
    ("I live in Turin.", "I've moved to Genoa"),
    ("I live in Turin.", "We recently relocated from Turin to Genoa."),
    ("I live in Turin.", "I no longer live in Turin."),
    ("I live in Turin.", "I don't live in Turin anymore."),
    ("I live in Turin.", "I moved away from Turin last month."),
    ("I moved to Genoa.", "I live in Pisa now."),
    ("I'm 34.", "I'm 35 now"),
    ("I'm 34 years old.", "I turned 35 yesterday."),
    ("I'm lactose intolerant.", "I'm not lactose intolerant anymore."),
    ("I'm vegan.", "I'm no longer vegan."),
    ("I'm a vegetarian.", "I stopped being a vegetarian."),
    ("I don't eat meat.", "I eat meat again."),
    ("I can't drink coffee.", "I can drink coffee again now."),
    ("I'm allergic to nuts.", "I'm no longer allergic to nuts."),
    ("I'm allergic to nuts.", "I'm not allergic to nuts any more."),
    ("I'm allergic to peanuts.", "Turns out I'm not allergic to peanuts"),
    ("I'm allergic to peanuts.", "It turned out that I am not allergic to peanuts after all."),
    ("I'm allergic to peanuts.", "I'm not allergic to peanuts after all!"),
    ("I drive a Subaru.", "sold the Subaru"),
    ("I drive a Subaru Outback.", "We sold our Subaru last week."),
    ("My car is a Toyota Corolla.", "I finally sold my car."),
    ("My name is Priya.", "my name isn't Priya"),
    ("My name is Priya.", "My name is not Priya, it's a typo."),
    ("I work at Siemens.", "I quit my job."),
    ("I work at Siemens.", "I got laid off last month."),
    ("I work at Siemens.", "I don't work at Siemens anymore."),
    ("I'm married.", "I broke up with my husband."),
    ("I'm engaged.", "My fiancé and I split up."),
    ("I hate cilantro.", "I actually love cilantro now"),
    ("I love coffee.", "I no longer like coffee."),
    ("我住在深圳。", "我上周搬到热那亚了。"),
    ("我住在深圳。", "我们搬去广州了。"),
    ("我住在深圳。", "我不住在深圳了。"),
    ("我住在深圳。", "我从深圳搬走了。"),
    ("我今年34岁。", "我现在35岁了。"),
    ("我吃素。", "我不再吃素了。"),
    ("我不能喝咖啡。", "现在可以喝咖啡了。"),
    ("我不吃辣。", "我现在能吃辣了。"),
    ("我对花生过敏。", "我对花生不过敏了。"),
    ("我对芒果过敏。", "我现在对芒果已经不过敏了。"),
    ("我对花生过敏。", "原来我不对花生过敏"),
    ("我对花生过敏。", "原来我对花生不过敏。"),
    ("我对花生过敏。", "检查发现我对花生并不过敏"),
    ("我有一辆特斯拉。", "我把特斯拉卖了。"),
    ("我有一辆宝马。", "我上周把车卖了。"),
    ("我叫张曼婷。", "我不叫张曼婷。"),
    ("我在人民医院上班。", "我上个月离职了。"),
    ("我在人民医院上班。", "我被裁员了。"),
    ("我结婚了。", "我和对象分手了。"),
    ("我订婚了。", "我和未婚夫最近分手了。"),
    ("我不喜欢香菜。", "我喜欢香菜了。"),
    ("My girlfriend is called Rain.", "I broke up with my girlfriend Rain"),
    ("My girlfriend's name is Rain.", "My girlfriend and I broke up last month."),
    ("My boyfriend Tom called today.", "I recently broke up with my boyfriend."),
    ("My fiancé is called Tom.", "My fiancé Tom and I split up."),
    ("我女朋友叫小雨。", "我和女朋友分手了。"),
    ("我女朋友叫小雨。", "我和女友小雨上个月分手了。"),
    ("My dog is called Pixel.", "my dog Pixel died"),
    ("My dog is a beagle called Pixel.", "Our dog Pixel passed away last week."),
    ("I have a corgi named Momo.", "My dog died yesterday."),
    ("I have a kitten.", "Our cat passed away."),
    ("我家养了一只狗。", "我的狗去世了。"),
    ("我的狗叫豆豆。", "我家狗狗豆豆昨天去世了。"),
    ("我养了一只小猫叫咪咪。", "我的猫死了。"),
    ("I live in Turin.", "I relocated to Genoa for work"),
    ("I'm allergic to peanuts.", "I'm not allergic to peanuts"),
    ("我对花生过敏。", "我其实不对花生过敏"),
    ("I'm a vegetarian.", "I eat meat again"),
    ("I'm vegan.", "I eat meat again"),
    ("I work at Siemens.", "I left Siemens"),
    ("我吃素。", "我现在吃肉了"),
    ("我女朋友叫小雨。", "我和女朋友分手了"),
    ("I live in Lisbon.", "I relocated to Porto because of my new job"),
    ("I live in Boston.", "We've just moved house to Denver, Colorado"),
    ("I live in Oslo.", "Since May I've been living in Bergen"),
    ("I work at Bosch.", "Friday was my last day at Bosch."),
    ("I work at Bosch.", "I handed in my notice and left Bosch last month"),
    ("I'm allergic to shellfish.", "My shellfish allergy is gone."),
    ("I'm a vegetarian.", "I've started eating meat again"),
    ("I don't drink alcohol.", "I've gone back to drinking alcohol"),
    ("I'm married.", "My husband and I got divorced last year"),
    ("My name is Kathrin.", "Please note, I changed my name to Katja."),
    ("I'm 29.", "It was my birthday yesterday, I'm 30 now!"),
    ("I love sushi.", "I've gone off sushi lately."),
    ("我住在杭州。", "我已经搬离杭州，现在在苏州生活。"),
    ("我住在杭州。", "因为工作调动，我搬到了成都。"),
    ("我在华为上班。", "我不在华为干了。"),
    ("我在华为上班。", "我上周从华为跳槽到小米了。"),
    ("我对虾过敏。", "医生说我的虾过敏好了。"),
    ("我对牛奶过敏。", "我不对牛奶过敏。"),
    ("我吃素。", "我又开始吃肉了。"),
    ("我不喝酒。", "我现在又喝酒了。"),
    ("我单身。", "我上个月结婚了。"),
    ("我叫李娜。", "我改名叫李楠了。"),
    ("我今年28岁。", "我昨天刚满29岁。"),
    ("我有一辆宝马。", "宝马我已经卖了，换了辆电动车。"),
    ("我喜欢吃榴莲。", "我现在不爱吃榴莲了。"),
    ("I take metformin.", "I no longer take metformin."),
    ("I have asthma.", "I don't have asthma anymore."),
    ("我有高血压。", "我没有高血压了。"),
    ("I'm a nurse.", "I'm not a nurse anymore."),
    ("I'm learning Spanish.", "I stopped learning Spanish."),
    ("I work nights.", "I no longer work nights."),
)
KEEPS = (
    ("I live in Turin.", "I'm visiting Genoa."),
    ("I'm allergic to peanuts.", "Turns out I'm not allergic to cats."),
    ("我对花生过敏。", "原来我不对猫毛过敏"),
    ("I live in Turin.", "My sister moved to Genoa."),
    ("I live in Turin.", "I moved to Slack."),
    ("I live in Turin.", "I moved to Kubernetes last week."),
    ("I live in Turin.", "I no longer live in Rome."),
    ("I live in Turin.", "I don't live in Rome anymore."),
    ("I live in Turin.", "Should I move to Genoa?"),
    ("I live in Turin.", "If I moved to Genoa, what would change?"),
    ("I live in Turin.", "I'm staying in Genoa for two nights."),
    ("I drive a Subaru.", "I sold my neighbour's Subaru story."),
    ("I drive a Subaru.", "I sold the Toyota."),
    ("I drive a Subaru.", "My brother sold his Subaru."),
    ("I'm vegan.", "My wife is no longer vegan."),
    ("I'm allergic to nuts.", "I'm not allergic to cats anymore."),
    ("My name is Priya.", "My name isn't Ann."),
    ("I work at Siemens.", "I don't work at Google anymore."),
    ("I'm married.", "My sister broke up with her husband."),
    ("I hate cilantro.", "My wife loves cilantro."),
    ("I can't drink coffee.", "Can I drink coffee again?"),
    ("I'm 34.", "My brother is 35 now."),
    ("我住在深圳。", "我这周五要去广州出差，住两晚。"),
    ("我住在深圳。", "我在广州住三天。"),
    ("我住在深圳。", "我姐姐搬到广州了。"),
    ("我住在深圳。", "我不住在北京了。"),
    ("我住在深圳。", "我搬到新公司了。"),
    ("我不能喝咖啡。", "现在可以喝咖啡了吗？"),
    ("我对花生过敏。", "我对猫毛不过敏了。"),
    ("我有一辆特斯拉。", "我哥把特斯拉卖了。"),
    ("我结婚了。", "我妹妹和男朋友分手了。"),
    ("我在人民医院上班。", "我同事离职了。"),
    ("My girlfriend is called Rain.", "I broke up with my boyfriend Tom."),
    ("My girlfriend is called Rain.", "My sister broke up with her girlfriend Rain."),
    ("My girlfriend is called Rain.", "My girlfriend Rain and I moved in together."),
    ("My brother is called Tom.", "My brother is called Sam."),
    ("我女朋友叫小雨。", "我妹妹和男朋友分手了。"),
    ("My dog is called Pixel.", "My dog Rex died."),
    ("My dog is called Pixel.", "My cat died."),
    ("My dog is called Pixel.", "My neighbour's dog Pixel died."),
    ("My dog is called Pixel.", "My phone died."),
    ("We have two cats.", "Our cat died."),
    ("我的狗叫豆豆。", "我的狗毛毛去世了。"),
    ("我的狗叫豆豆。", "邻居的狗去世了。"),
    ("I live in Lisbon.", "I'm in Porto for two weeks for work."),
    ("I live in Lisbon.", "I might move to Porto next year."),
    ("I work at Bosch.", "I left Bosch headquarters at six yesterday."),
    ("I work at Bosch.", "My colleague left Bosch."),
    ("I'm allergic to shellfish.", "I'm not allergic to dogs."),
    ("I'm a vegetarian.", "My brother eats meat again."),
    ("I'm a vegetarian.", "I'd eat meat again if I had to."),
    ("I'm married.", "I'm thinking of getting divorced."),
    ("I drive a Honda Civic.", "I'm selling my bike."),
    ("I love sushi.", "I don't like ramen."),
    ("我住在杭州。", "我下个月去苏州待一周。"),
    ("我住在杭州。", "我爸妈搬到成都了。"),
    ("我在华为上班。", "我昨天八点才离开华为。"),
    ("我对虾过敏。", "我不对花生过敏。"),
    ("我吃素。", "要是我又开始吃肉了，你会怪我吗？"),
    ("I'm allergic to nuts.", "I don't think I'm allergic to nuts."),
    ("I live in Turin.", "I left Turin."),
    ("I work at Siemens.", "I left Bosch."),
    ("I live in Turin.", "I moved to Genoa for two weeks."),
    ("I live in Turin.", "I no longer work at Turin Motors, and I live in Turin."),
    ("我吃素。", "我昨天吃肉了。"),
)


def held(*texts: str) -> list[str]:
    """Returns the contents of the memories that are valid after these turns."""
    state = MemoryState(Place("default", "ann"), (), END_OF_TIME)
    for memory in candidates("default", "ann", apply_rules(*texts).findings):
        state.apply(decide(memory, state.matching(memory)))
    return [row.content for row in state.rows.values() if row.status == "valid"]


@pytest.mark.parametrize(("before", "after"), ENDS)
def test_a_later_statement_ends_the_memory_that_it_denies(before: str, after: str) -> None:
    [old] = held(before)
    now = held(before, after)
    assert old not in now
    assert now


@pytest.mark.parametrize(("before", "after"), KEEPS)
def test_another_statement_ends_nothing(before: str, after: str) -> None:
    [old] = held(before)
    assert old in held(before, after)


def test_a_denied_statement_may_be_made_again() -> None:
    assert held("I live in Turin.", "I no longer live in Turin.", "I live in Turin.") == ["Lives in Turin"]
    assert held("I'm vegan.", "I'm no longer vegan.", "I'm vegan.") == ["Diet: vegan"]
    assert held("I moved to Genoa.", "I no longer live in Turin.") == ["Moved to Genoa"]
    assert held("I live in Genoa.", "I no longer live in Turin.", "I live in Genoa.") == ["Lives in Genoa"]


def test_a_stay_is_not_a_residence() -> None:
    assert held("我这周五要去广州出差，住两晚。") == []
    assert held("我在三亚住了一个星期。") == []


def test_leaving_and_eating_again_add_no_memory_if_they_end_none() -> None:
    assert held("I left Lisbon.") == []
    assert held("I work at Bosch.", "I left Lisbon.") == ["Works at Bosch"]
    assert held("我吃肉了。") == []
    assert held("I'm vegan.", "I eat meat again.", "I'm vegan.") == ["Diet: vegan"]


def test_each_rule_detects_the_end_of_its_statement_and_keeps_other_clauses() -> None:
    assert held("I no longer live in Rome, I live in Turin.") == ["Lives in Turin"]
    assert held("I live in Turin and I'm no longer vegan.") == ["Lives in Turin", "No longer: Diet: vegan"]
    assert held("I'm allergic to nuts.", "I'm not allergic to cats.") == ["Allergic to nuts", "Not allergic to cats"]
